"""The desktop app: plans, launches and watches runs. It never imports torch."""
