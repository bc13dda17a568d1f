"""Programs that travel: a traced function in a file, which another process runs without the function's source."""
