"""What others may ask for over HTTP: answers, by `app`, and models, by `share`."""
