"""The SQL of api. Only DependencyUnavailable leaves this folder; other database exceptions do not."""
