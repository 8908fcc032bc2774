"""Models as graphs: compiled and exported. Each test compiles for seconds."""
