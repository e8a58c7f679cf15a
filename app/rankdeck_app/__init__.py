"""The desktop app: it plans, launches and watches runs, and never imports torch."""
