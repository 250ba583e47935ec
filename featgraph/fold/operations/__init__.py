"""Operations on features, such as `fg.feature_sum`: types, and code for every form.

`primitive` has the interface of an operation, `table` lists all operations. A new
operation is a class derived from `Primitive`, and an entry in `table.OPERATIONS`.
"""
