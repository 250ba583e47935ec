"""Operations: of each its types, what varies, and how every form prints it."""
