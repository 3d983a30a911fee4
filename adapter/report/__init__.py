"""An init report made readable; renders only, computes nothing that is not in the report."""
