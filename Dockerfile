# A node, the dashboard and the command line, without your application: build on it, as docs/how-to/operations/container.md shows.
FROM python:3.13-slim AS build
WORKDIR /src
COPY LICENSE README.md setup.cfg pyproject.toml ./
COPY taskqueue taskqueue
RUN python -m venv /opt/taskqueue && /opt/taskqueue/bin/pip install --no-cache-dir ".[dev,metrics,postgresql,web]" "psycopg[binary]>=3.2.4"

FROM python:3.13-slim
COPY --from=build /opt/taskqueue /opt/taskqueue
RUN useradd --uid 10001 --no-create-home --home-dir /var/lib/taskqueue taskqueue \
    && install --directory --owner=taskqueue --group=taskqueue --mode=0700 /run/taskqueue \
    && install --directory --owner=taskqueue --group=root --mode=0770 /var/lib/taskqueue
ENV PATH=/opt/taskqueue/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    RUNTIME_DIRECTORY=/run/taskqueue \
    TASKQUEUE_URL=sqlite:////var/lib/taskqueue/jobs.db
# A number: Kubernetes checks runAsNonRoot by it. OpenShift puts another in its place, of the group root.
USER 10001
WORKDIR /srv
VOLUME /var/lib/taskqueue
# Live, not ready: an outage of the store is no reason to start anew.
HEALTHCHECK --interval=20s --timeout=5s --start-period=30s CMD ["taskqueue", "health", "--live"]
# Process 1 itself: it gets the signals, and reaps what its jobs leave behind.
ENTRYPOINT ["taskqueue-node"]
