"""Reports for people: tables on a terminal, one HTML page, a Perfetto file, a picture."""
