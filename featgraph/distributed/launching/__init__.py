"""Starting ranks, watching them, and ending them: ``featgraph launch`` (0056)."""
