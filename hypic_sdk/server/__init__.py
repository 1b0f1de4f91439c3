"""HTTP in front of a service: OpenAI's shapes, segments, warm jobs.  Owns no worker."""
