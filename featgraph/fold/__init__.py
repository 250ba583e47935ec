"""The folder: from declared functions to one specialised kernel.

Start reading at `folder`.
"""
