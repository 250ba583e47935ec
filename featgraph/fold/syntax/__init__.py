"""From a user function to its normal form: names, calls, statements, types.

The passes, in order: `resolve` (names become nodes), `normal_form` (each collaborative
call has a statement of its own), `types` (types and conversions), and `find_varying` of
`normal_form`. `analysis.analyse` calls them.
"""
