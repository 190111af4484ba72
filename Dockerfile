# Any party, or the hub: `docker run IMAGE trainer run /party`. The compiler builds the engine's kernels at first use, into
# the cache folder; without it the same bits come out, more slowly.
FROM python:3.11-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY constraints.txt pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY contracts/artifacts contracts/artifacts
COPY tiebreak tiebreak
# The processor's build of torch; for a GPU leave out the index and start the container with the device.
RUN python -m venv /opt/tiebreak \
    && PIP_CONSTRAINT=constraints.txt /opt/tiebreak/bin/pip install --no-cache-dir \
       --extra-index-url https://download.pytorch.org/whl/cpu '.[node,postgres]'

FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 tiebreak && install -d -o tiebreak -m 700 /party
COPY --from=build /opt/tiebreak /opt/tiebreak
ENV PATH=/opt/tiebreak/bin:$PATH PYTHONUNBUFFERED=1
USER tiebreak
WORKDIR /party
VOLUME /party
ENTRYPOINT ["tiebreak"]
CMD ["--help"]
