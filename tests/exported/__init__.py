"""The printed C as programs of their own, with the compiler's sanitizers watching."""
