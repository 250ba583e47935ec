"""What runs do without until it is compiled behind them."""
