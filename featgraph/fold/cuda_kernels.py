DECORATOR = "@device_function"
LIBRARY = "warp"
