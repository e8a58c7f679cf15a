"""When things happen inside a step: spans, the clocks that time them, and the pace of pretended devices."""
