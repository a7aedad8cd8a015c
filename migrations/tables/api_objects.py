"""Tables of what callers make over the API and read back by its id: files, batches and responses."""

from sqlalchemy import BigInteger, Column, Double, ForeignKey, Index, Integer, LargeBinary, String, Table

from migrations.tables.columns import FreeText, Json, metadata

# Callers' files: inputs and outputs of batches, and others. Their bytes are in `file_parts`.
files = Table(
    "files",
    metadata,
    Column("file_id", String(64), primary_key=True),  # sorts by time
    Column("key_id", String(128)),
    Column("tenant", String(128), nullable=False),  # the owner: a team or a key; "": without keys
    Column("purpose", String(32), nullable=False),  # batch | user_data | batch_output
    Column("filename", FreeText, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("status", String(16), nullable=False),  # uploading | processed
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Index(None, "created_at"),
    Index(None, "expires_at"),
    Index(None, "key_id", "created_at"),
    Index(None, "tenant", "file_id"),
    Index(None, "tenant", "purpose", "file_id"),
)

file_parts = Table(
    "file_parts",
    metadata,
    Column("file_id", ForeignKey("files.file_id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),  # from 0
    Column("content", LargeBinary, nullable=False),
)

# A caller's requests for batch processing; the requests themselves are in `batch_lines`.
batches = Table(
    "batches",
    metadata,
    Column("batch_id", String(64), primary_key=True),  # sorts by time
    Column("key_id", String(128)),
    Column("tenant", String(128), nullable=False),  # as of files
    Column("endpoint", String(64), nullable=False),
    Column("input_file_id", String(64), nullable=False),
    Column("completion_window", String(8), nullable=False),
    Column("metadata", Json),
    Column("traceparent", String(64)),  # of the request that created it
    Column("output_seconds", Double),  # after which its output expires; NULL: like files
    # validating | failed | in_progress | finalizing | completed | expired | cancelling | cancelled
    Column("status", String(16), nullable=False),
    Column("errors", Json),  # list of gateway.batches.batch.InputError
    Column("output_file_id", String(64)),
    Column("error_file_id", String(64)),
    Column("total", Integer, nullable=False),
    Column("completed", Integer),  # counted once it has ended
    Column("failed", Integer),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("in_progress_at", Double),
    Column("finalizing_at", Double),
    Column("completed_at", Double),
    Column("failed_at", Double),
    Column("expired_at", Double),
    Column("cancelling_at", Double),
    Column("cancelled_at", Double),
    Column("owner", String(64)),  # the process that reads its input or writes its output, until `lease_until`
    Column("lease_until", Double),  # on the clock of budget leases
    Index(None, "created_at"),
    Index(None, "status", "created_at"),
    Index(None, "key_id", "created_at"),
    Index(None, "key_id", "status", "created_at"),
    Index(None, "tenant", "batch_id"),
)

batch_lines = Table(
    "batch_lines",
    metadata,
    Column("batch_id", ForeignKey("batches.batch_id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),  # of the line in its file, from 1
    Column("custom_id", FreeText, nullable=False),
    Column("status", String(16), nullable=False),  # pending | done | failed | unanswered
    Column("body", FreeText),  # NULL once it is answered
    Column("answer", FreeText),  # the line of the output or error file
    Column("visible_at", Double, nullable=False),  # when it may be taken, by the leases' clock; 0: at once
    Column("taken_by", String(64)),  # the worker until `visible_at`
    Column("deliveries", Integer, nullable=False),
    Column("deaths", Integer, nullable=False, server_default="0"),  # of processes that were answering it
    Index("uq_batch_lines_batch_id_custom_id", "batch_id", "custom_id", unique=True),
    Index(None, "batch_id", "status", "visible_at", "number"),
)

# Responses that a later request may refer to as `previous_response_id`. A row has its own items only, so that deleting
# it, or its retention, deletes them wherever the conversation went.
stored_responses = Table(
    "stored_responses",
    metadata,
    Column("response_id", String(64), primary_key=True),  # also the request's id
    Column("key_id", String(128)),
    Column("tenant", String(128), nullable=False),  # as of files; looked at once the key has found the row
    Column("previous_response_id", String(64)),
    Column("conversation", String(128), nullable=False),  # the id by which routing knows it
    Column("context_bytes", BigInteger, nullable=False),  # of the items of this row and all before it, as JSON
    Column("input", Json, nullable=False),  # list of the request's own items
    Column("response", Json, nullable=False),  # the body of the answer
    Column("consent", Json),  # as of requests: it binds those that go on from it
    Column("created_at", Double, nullable=False),
    Index(None, "created_at"),
    Index(None, "key_id", "created_at"),
)

# What assistants said in tool loops as only their server can read it, for the next step; for a day.
stored_turns = Table(
    "kept_turns",
    metadata,
    Column("turn_id", String(64), primary_key=True),  # digest of whose it is, and of the call
    Column("key_id", String(128)),
    Column("tenant", String(128), nullable=False),  # as of files
    Column("content", LargeBinary, nullable=False),
    Column("size", Integer, nullable=False),  # bytes of the content
    Column("created_at", Double, nullable=False),
    Index(None, "created_at"),
    Index(None, "key_id", "created_at"),
    Index(None, "tenant", "created_at"),
)
