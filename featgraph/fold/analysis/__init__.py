"""What is known of a program: accesses, checks, what each function may change."""
