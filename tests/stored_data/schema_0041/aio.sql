BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0041');
CREATE TABLE alert_messages (
	channel VARCHAR(16) NOT NULL, 
	cause VARCHAR(256) NOT NULL, 
	state VARCHAR(8) NOT NULL, 
	severity VARCHAR(16) NOT NULL, 
	summary TEXT NOT NULL, 
	ends BOOLEAN NOT NULL, 
	sent_at DOUBLE NOT NULL, 
	CONSTRAINT pk_alert_messages PRIMARY KEY (channel, cause)
);
CREATE TABLE api_keys (
	key_id VARCHAR(64) NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	team_id VARCHAR(64), 
	prefix VARCHAR(32) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	old_prefix VARCHAR(32), 
	old_digest VARCHAR(64), 
	old_until DOUBLE, 
	scopes JSON NOT NULL, 
	tiers JSON, 
	models JSON, 
	consent BOOLEAN NOT NULL, 
	priority_ceiling INTEGER NOT NULL, 
	requests_per_minute INTEGER, 
	tokens_per_minute INTEGER, 
	concurrency INTEGER, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE, 
	rotated_at DOUBLE, 
	revoked_at DOUBLE, revision BIGINT DEFAULT '0' NOT NULL, quality JSON, min_tier INTEGER, strict BOOLEAN DEFAULT 0 NOT NULL, aliases JSON, local_only BOOLEAN DEFAULT 0 NOT NULL, max_cost_usd_per_request DOUBLE, paused_at DOUBLE, 
	CONSTRAINT pk_api_keys PRIMARY KEY (key_id), 
	CONSTRAINT fk_api_keys_team_id FOREIGN KEY(team_id) REFERENCES teams (team_id)
);
INSERT INTO "api_keys" VALUES('key_cbd0a3ac69d2f748','app','team_a215c6e0dc7ae48e','sk-aio-BuQYHEsn','28414512643c3ea81e896584a92f7fd91ee9761779c607fdf5568cdf190ae75e',NULL,NULL,NULL,'["inference"]',NULL,NULL,1,0,60,NULL,NULL,1.79579001783222079275e+09,NULL,NULL,NULL,3,NULL,NULL,0,NULL,0,NULL,NULL);
CREATE TABLE audit_events (
	audit_event_id INTEGER NOT NULL, 
	created_at DOUBLE NOT NULL, 
	actor TEXT NOT NULL, 
	action VARCHAR(64) NOT NULL, 
	subject TEXT NOT NULL, 
	reason TEXT, 
	details JSON, 
	CONSTRAINT pk_audit_events PRIMARY KEY (audit_event_id)
);
INSERT INTO "audit_events" VALUES(1,1.79579001781676793098e+09,'tester','team.created','team_a215c6e0dc7ae48e',NULL,'{"name":"research"}');
INSERT INTO "audit_events" VALUES(2,1.79579001783222079275e+09,'tester','key.created','key_cbd0a3ac69d2f748',NULL,'{"name":"app","team_id":"team_a215c6e0dc7ae48e","prefix":"sk-aio-BuQYHEsn","scopes":["inference"],"tiers":null,"models":null,"quality":null,"min_tier":null,"consent":true,"priority_ceiling":0,"requests_per_minute":60,"tokens_per_minute":null,"concurrency":null,"strict":false,"aliases":null,"expires_at":null}');
INSERT INTO "audit_events" VALUES(3,1.79579001783923816685e+09,'tester','budget.set','budget_2bb6ae6e5b01dc9e',NULL,'{"subject":"team_a215c6e0dc7ae48e","period":"month","amount_usd":[null,25.0]}');
CREATE TABLE batch_lines (
	batch_id VARCHAR(64) NOT NULL, 
	number INTEGER NOT NULL, 
	custom_id TEXT NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	body TEXT, 
	answer TEXT, 
	visible_at DOUBLE NOT NULL, 
	taken_by VARCHAR(64), 
	deliveries INTEGER NOT NULL, deaths INTEGER DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_batch_lines PRIMARY KEY (batch_id, number), 
	CONSTRAINT fk_batch_lines_batch_id FOREIGN KEY(batch_id) REFERENCES batches (batch_id) ON DELETE CASCADE
);
CREATE TABLE batches (
	batch_id VARCHAR(64) NOT NULL, 
	key_id VARCHAR(128), 
	tenant VARCHAR(128) NOT NULL, 
	endpoint VARCHAR(64) NOT NULL, 
	input_file_id VARCHAR(64) NOT NULL, 
	completion_window VARCHAR(8) NOT NULL, 
	metadata JSON, 
	traceparent VARCHAR(64), 
	output_seconds DOUBLE, 
	status VARCHAR(16) NOT NULL, 
	errors JSON, 
	output_file_id VARCHAR(64), 
	error_file_id VARCHAR(64), 
	total INTEGER NOT NULL, 
	completed INTEGER, 
	failed INTEGER, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE NOT NULL, 
	in_progress_at DOUBLE, 
	finalizing_at DOUBLE, 
	completed_at DOUBLE, 
	failed_at DOUBLE, 
	expired_at DOUBLE, 
	cancelling_at DOUBLE, 
	cancelled_at DOUBLE, 
	owner VARCHAR(64), 
	lease_until DOUBLE, 
	CONSTRAINT pk_batches PRIMARY KEY (batch_id)
);
CREATE TABLE budget_leases (
	lease_id INTEGER NOT NULL, 
	budget_id VARCHAR(64) NOT NULL, 
	period_key VARCHAR(16) NOT NULL, 
	replica VARCHAR(64) NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	granted_microusd BIGINT NOT NULL, 
	spent_microusd BIGINT NOT NULL, 
	expires_at DOUBLE NOT NULL, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_budget_leases PRIMARY KEY (lease_id), 
	CONSTRAINT fk_budget_leases_budget_id FOREIGN KEY(budget_id) REFERENCES budgets (budget_id) ON DELETE CASCADE
);
INSERT INTO "budget_leases" VALUES(1,'budget_2bb6ae6e5b01dc9e','2026-11','replica_9fd86a48dccae808','returned',2526,2526,53708.787775901,1.79579001837563014031e+09);
CREATE TABLE budgets (
	budget_id VARCHAR(64) NOT NULL, 
	subject_kind VARCHAR(8) NOT NULL, 
	subject VARCHAR(128) NOT NULL, 
	period VARCHAR(8) NOT NULL, 
	amount_microusd BIGINT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_budgets PRIMARY KEY (budget_id)
);
INSERT INTO "budgets" VALUES('budget_2bb6ae6e5b01dc9e','team','team_a215c6e0dc7ae48e','month',25000000,1.79579001783923816685e+09);
CREATE TABLE classifier_versions (
	version VARCHAR(64) NOT NULL, 
	parent VARCHAR(64), 
	path TEXT NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	reason TEXT NOT NULL, 
	metrics JSON NOT NULL, 
	created_at DOUBLE NOT NULL, 
	promoted_at DOUBLE, 
	retired_at DOUBLE, 
	CONSTRAINT pk_classifier_versions PRIMARY KEY (version)
);
CREATE TABLE dashboard_sessions (
	session_id VARCHAR(64) NOT NULL, 
	user_name VARCHAR(128), 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE NOT NULL, key_id VARCHAR(128), key_proof VARCHAR(64), 
	CONSTRAINT pk_dashboard_sessions PRIMARY KEY (session_id), 
	CONSTRAINT fk_dashboard_sessions_user_name FOREIGN KEY(user_name) REFERENCES dashboard_users (name) ON DELETE CASCADE
);
CREATE TABLE dashboard_users (
	name VARCHAR(128) NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	password VARCHAR(256) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_dashboard_users PRIMARY KEY (name)
);
CREATE TABLE erased_embeddings (
	digest VARCHAR(64) NOT NULL, 
	erased_at DOUBLE NOT NULL, 
	CONSTRAINT pk_erased_embeddings PRIMARY KEY (digest)
);
CREATE TABLE erasures (
	key_id VARCHAR(128) NOT NULL, 
	erased_at DOUBLE NOT NULL, 
	CONSTRAINT pk_erasures PRIMARY KEY (key_id)
);
CREATE TABLE experiments (
	experiment_id VARCHAR(64) NOT NULL, 
	name TEXT NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	config JSON NOT NULL, 
	metrics JSON, 
	reason TEXT, 
	created_at DOUBLE NOT NULL, 
	finished_at DOUBLE, 
	CONSTRAINT pk_experiments PRIMARY KEY (experiment_id)
);
CREATE TABLE file_parts (
	file_id VARCHAR(64) NOT NULL, 
	number INTEGER NOT NULL, 
	content BLOB NOT NULL, 
	CONSTRAINT pk_file_parts PRIMARY KEY (file_id, number), 
	CONSTRAINT fk_file_parts_file_id FOREIGN KEY(file_id) REFERENCES files (file_id) ON DELETE CASCADE
);
CREATE TABLE files (
	file_id VARCHAR(64) NOT NULL, 
	key_id VARCHAR(128), 
	tenant VARCHAR(128) NOT NULL, 
	purpose VARCHAR(32) NOT NULL, 
	filename TEXT NOT NULL, 
	bytes BIGINT NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE, 
	CONSTRAINT pk_files PRIMARY KEY (file_id)
);
CREATE TABLE kept_turns (
	turn_id VARCHAR(64) NOT NULL, 
	key_id VARCHAR(128), 
	tenant VARCHAR(128) NOT NULL, 
	content BLOB NOT NULL, 
	size INTEGER NOT NULL, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_kept_turns PRIMARY KEY (turn_id)
);
CREATE TABLE knob_changes (
	knob_change_id INTEGER NOT NULL, 
	created_at DOUBLE NOT NULL, 
	actor TEXT NOT NULL, 
	part VARCHAR(64) NOT NULL, 
	knob VARCHAR(64) NOT NULL, 
	old_value JSON, 
	new_value JSON, 
	reason TEXT, model TEXT, kept BOOLEAN DEFAULT 0 NOT NULL, refused TEXT, 
	CONSTRAINT pk_knob_changes PRIMARY KEY (knob_change_id)
);
CREATE TABLE outcome_imports (
	import_id VARCHAR(64) NOT NULL, 
	file TEXT NOT NULL, 
	margin DOUBLE NOT NULL, 
	weight DOUBLE NOT NULL, 
	understood JSON NOT NULL, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_outcome_imports PRIMARY KEY (import_id)
);
CREATE TABLE refused_requests (
	refusal_id VARCHAR(32) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	key_id VARCHAR(128), 
	status INTEGER NOT NULL, 
	code VARCHAR(64) NOT NULL, 
	reason VARCHAR(256) NOT NULL, 
	path VARCHAR(128) NOT NULL, 
	count INTEGER NOT NULL, 
	last_at DOUBLE NOT NULL, 
	last_request_id VARCHAR(128) NOT NULL, 
	last_message TEXT, 
	CONSTRAINT pk_refused_requests PRIMARY KEY (refusal_id)
);
CREATE TABLE "requests" (
	request_id VARCHAR(64) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	api VARCHAR(16) NOT NULL, 
	requested_model TEXT NOT NULL, 
	key_id VARCHAR(128), 
	stream BOOLEAN NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	http_status INTEGER NOT NULL, 
	error TEXT, 
	tier INTEGER, 
	model TEXT NOT NULL, 
	attempts BLOB NOT NULL, 
	messages JSON, 
	answer TEXT, 
	reasoning TEXT, 
	finish_reason VARCHAR(32), 
	prompt_tokens INTEGER NOT NULL, 
	completion_tokens INTEGER NOT NULL, 
	cached_tokens INTEGER NOT NULL, 
	reasoning_tokens INTEGER NOT NULL, 
	cost_usd DOUBLE NOT NULL, 
	baseline_cost_usd DOUBLE NOT NULL, 
	route_ms DOUBLE NOT NULL, 
	ttft_ms DOUBLE, 
	e2e_ms DOUBLE NOT NULL, 
	overhead_ms DOUBLE NOT NULL, 
	response_format JSON, 
	cache VARCHAR(16), 
	replica VARCHAR(64), 
	tags JSON, 
	queue_ms DOUBLE, 
	prefill_ms DOUBLE, 
	decode_ms DOUBLE, 
	consent JSON, 
	compared VARCHAR(16), facet TEXT GENERATED ALWAYS AS (COALESCE(CAST(tier AS TEXT), '') || '/' || status || '/' || SUBSTR(requested_model, 1, 256)), 
	CONSTRAINT pk_requests PRIMARY KEY (request_id)
);
INSERT INTO "requests" VALUES('chatcmpl-01a21d6d1744efb80ffcada66bdf8b1f',1.79579001837324118617e+09,'chat','auto','key_cbd0a3ac69d2f748',0,'ok',200,NULL,1,'upstream',X'5B7B2274696572223A312C226D6F64656C223A22757073747265616D222C22737461747573223A226F6B222C22636F73745F757364223A31652D362C226572726F72223A6E756C6C2C227374616765223A6E756C6C2C22705F6F6B223A6E756C6C2C22726561736F6E223A6E756C6C2C227265706C69636173223A5B5D7D5D','[{"role":"user","content":"Hi!"}]','Hi!',NULL,'stop',10,1,0,0,1.0e-06,0.0013,1.23428329970920458436e+01,NULL,1.37968879935215227305e+01,1.24279769806889817118e+01,NULL,NULL,'replica_9fd86a48dccae808',NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "requests" VALUES('chatcmpl-01a21d6d1778e6fec383475b9679a213',1.79579001842527532575e+09,'chat','tier-2','key_cbd0a3ac69d2f748',0,'ok',200,NULL,2,'upstream',X'5B7B2274696572223A322C226D6F64656C223A22757073747265616D222C22737461747573223A226F6B222C22636F73745F757364223A302E3030303032352C226572726F72223A6E756C6C2C227374616765223A6E756C6C2C22705F6F6B223A6E756C6C2C22726561736F6E223A6E756C6C2C227265706C69636173223A5B5D7D5D','[{"role":"user","content":"Stored by an earlier version"}]','Stored by an earlier version',NULL,'stop',10,5,0,0,2.5e-05,0.0025,3.9847739972174167633e+00,NULL,5.29132599331205710768e+00,4.05164499534294,NULL,NULL,'replica_9fd86a48dccae808',NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "requests" VALUES('chatcmpl-01a21d6d179d61eb3ff3c6921693d933',1.79579001846137523657e+09,'chat','tier-4','key_cbd0a3ac69d2f748',0,'ok',200,NULL,4,'upstream',X'5B7B2274696572223A342C226D6F64656C223A22757073747265616D222C22737461747573223A226F6B222C22636F73745F757364223A302E303032352C226572726F72223A6E756C6C2C227374616765223A6E756C6C2C22705F6F6B223A6E756C6C2C22726561736F6E223A6E756C6C2C227265706C69636173223A5B5D7D5D','[{"role":"user","content":"Why is the sky blue?"}]','Why is the sky blue?',NULL,'stop',10,5,0,0,0.0025,0.0025,8.77808997756801545619e-01,NULL,2.26860999828204512596e+00,9.44573002925608307123e-01,NULL,NULL,'replica_9fd86a48dccae808',NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE retrain_runs (
	run_id VARCHAR(64) NOT NULL, 
	"trigger" VARCHAR(32) NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	owner VARCHAR(128) NOT NULL, 
	lease_until DOUBLE NOT NULL, 
	step VARCHAR(64), 
	data_hash VARCHAR(64), 
	classifier_version VARCHAR(64), 
	reason TEXT, 
	error TEXT, 
	metrics JSON, 
	created_at DOUBLE NOT NULL, 
	finished_at DOUBLE, 
	CONSTRAINT pk_retrain_runs PRIMARY KEY (run_id)
);
CREATE TABLE rollouts (
	rollout_id VARCHAR(64) NOT NULL, 
	version VARCHAR(64) NOT NULL, 
	incumbent VARCHAR(64) NOT NULL, 
	stage VARCHAR(16) NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	share DOUBLE NOT NULL, 
	settings JSON NOT NULL, 
	evidence JSON, 
	reason TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	promoted_at DOUBLE, 
	finished_at DOUBLE, 
	CONSTRAINT pk_rollouts PRIMARY KEY (rollout_id)
);
CREATE TABLE "routing_decisions" (
	request_id VARCHAR(64) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	tier INTEGER NOT NULL, 
	classifier_version VARCHAR(64) NOT NULL, 
	prediction_kind VARCHAR(16) NOT NULL, 
	novelty DOUBLE NOT NULL, 
	experiment_id VARCHAR(64), 
	arm VARCHAR(8), 
	would_be_tier INTEGER, 
	decision BLOB NOT NULL, 
	unit TEXT, 
	CONSTRAINT pk_routing_decisions PRIMARY KEY (request_id), 
	CONSTRAINT fk_routing_decisions_request_id FOREIGN KEY(request_id) REFERENCES requests (request_id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
INSERT INTO "routing_decisions" VALUES('chatcmpl-01a21d6d1744efb80ffcada66bdf8b1f',1.79579001837324118617e+09,1,'v1-fd9b9ace3924','prior',1.0,NULL,NULL,NULL,X'7B2274696572223A312C22726561736F6E223A2253494D504C452028302E3939293A20746965722031206973207468652063686561706573742077686F736520616E7377657220697320676F6F6420656E6F7567682077697468205020302E3936203E3D20302E37303B2024302E30303030303620696E7374656164206F662024302E30303634303020287072696F723A207468697320636174616C6F67756520686173206E6F206D65617375726564206F7574636F6D657329222C2273636F726573223A5B302E303031303030303030303030303030303030322C302E3030393939393939393939393939393939382C302E312C312E305D2C22696E70757473223A7B2270726564696374696F6E223A7B22705F6F6B223A5B302E3936323731362C302E3937363336392C302E3938383437332C312E305D2C226B696E64223A227072696F72222C226E6F76656C7479223A312E302C22636C61737369666965725F76657273696F6E223A2276312D666439623961636533393234222C22636F6E747269627574696F6E73223A5B5D2C22705F636F7272656374223A5B5D2C227072656469637465645F746F6B656E73223A5B5D2C22636C6173736573223A5B302E393837392C302E303037332C302E3030322C302E303032385D2C226C6162656C73223A5B5D2C22676F6F645F6C6162656C73223A5B5D7D2C22636F737473223A5B362E343030303030303030303030303031652D362C302E3030303036342C302E30303036342C302E303036345D2C227175616C6974795F746172676574223A302E372C22746175223A302E372C2270696E6E65645F74696572223A6E756C6C2C226D696E5F74696572223A6E756C6C2C226B65795F6D696E5F74696572223A6E756C6C2C226D61785F636F73745F757364223A6E756C6C2C226578636C7573696F6E73223A5B5D2C227072656469637465645F7761697473223A5B302E302C302E302C302E302C302E305D2C226D6F73745F776169745F7365636F6E6473223A6E756C6C2C2270726576696F75735F74696572223A6E756C6C2C2272657573655F757364223A5B5D2C22696E5F746F6F6C5F6C6F6F70223A66616C73652C2263616E617279223A66616C73652C226578706572696D656E745F6964223A6E756C6C2C2261726D223A6E756C6C2C2261726D5F74696572223A6E756C6C2C22756E6974223A6E756C6C2C226F6273657276655F74696572223A6E756C6C2C2265646765223A6E756C6C7D2C22776F756C645F6265223A6E756C6C7D',NULL);
INSERT INTO "routing_decisions" VALUES('chatcmpl-01a21d6d1778e6fec383475b9679a213',1.79579001842527532575e+09,2,'v1-fd9b9ace3924','prior',1.0,NULL,NULL,NULL,X'7B2274696572223A322C22726561736F6E223A2270696E6E656420746F20746965722032222C2273636F726573223A5B6E756C6C2C302E30312C6E756C6C2C6E756C6C5D2C22696E70757473223A7B2270726564696374696F6E223A7B22705F6F6B223A5B302E3637363532392C302E37383636342C302E3932303638362C312E305D2C226B696E64223A227072696F72222C226E6F76656C7479223A312E302C22636C61737369666965725F76657273696F6E223A2276312D666439623961636533393234222C22636F6E747269627574696F6E73223A5B5D2C22705F636F7272656374223A5B5D2C227072656469637465645F746F6B656E73223A5B5D2C22636C6173736573223A5B302E353932352C302E313333332C302E313437352C302E313236375D2C226C6162656C73223A5B5D2C22676F6F645F6C6162656C73223A5B5D7D2C22636F737473223A5B372E31303030303030303030303030303135652D362C302E3030303037312C302E30303037312C302E303037315D2C227175616C6974795F746172676574223A302E372C22746175223A302E372C2270696E6E65645F74696572223A322C226D696E5F74696572223A6E756C6C2C226B65795F6D696E5F74696572223A6E756C6C2C226D61785F636F73745F757364223A6E756C6C2C226578636C7573696F6E73223A5B5D2C227072656469637465645F7761697473223A5B302E302C302E302C302E302C302E305D2C226D6F73745F776169745F7365636F6E6473223A6E756C6C2C2270726576696F75735F74696572223A6E756C6C2C2272657573655F757364223A5B5D2C22696E5F746F6F6C5F6C6F6F70223A66616C73652C2263616E617279223A66616C73652C226578706572696D656E745F6964223A6E756C6C2C2261726D223A6E756C6C2C2261726D5F74696572223A6E756C6C2C22756E6974223A6E756C6C2C226F6273657276655F74696572223A6E756C6C2C2265646765223A6E756C6C7D2C22776F756C645F6265223A6E756C6C7D',NULL);
INSERT INTO "routing_decisions" VALUES('chatcmpl-01a21d6d179d61eb3ff3c6921693d933',1.79579001846137523657e+09,4,'v1-fd9b9ace3924','prior',1.0,NULL,NULL,NULL,X'7B2274696572223A342C22726561736F6E223A2270696E6E656420746F20746965722034222C2273636F726573223A5B6E756C6C2C6E756C6C2C6E756C6C2C312E305D2C22696E70757473223A7B2270726564696374696F6E223A7B22705F6F6B223A5B302E3735303335382C302E3935333435362C302E3937383835312C312E305D2C226B696E64223A227072696F72222C226E6F76656C7479223A312E302C22636C61737369666965725F76657273696F6E223A2276312D666439623961636533393234222C22636F6E747269627574696F6E73223A5B5D2C22705F636F7272656374223A5B5D2C227072656469637465645F746F6B656E73223A5B5D2C22636C6173736573223A5B302E3530332C302E343732372C302E303132312C302E303132315D2C226C6162656C73223A5B5D2C22676F6F645F6C6162656C73223A5B5D7D2C22636F737473223A5B362E393030303030303030303030303031652D362C302E3030303036392C302E30303036392C302E303036395D2C227175616C6974795F746172676574223A302E372C22746175223A302E372C2270696E6E65645F74696572223A342C226D696E5F74696572223A6E756C6C2C226B65795F6D696E5F74696572223A6E756C6C2C226D61785F636F73745F757364223A6E756C6C2C226578636C7573696F6E73223A5B5D2C227072656469637465645F7761697473223A5B302E302C302E302C302E302C302E305D2C226D6F73745F776169745F7365636F6E6473223A6E756C6C2C2270726576696F75735F74696572223A6E756C6C2C2272657573655F757364223A5B5D2C22696E5F746F6F6C5F6C6F6F70223A66616C73652C2263616E617279223A66616C73652C226578706572696D656E745F6964223A6E756C6C2C2261726D223A6E756C6C2C2261726D5F74696572223A6E756C6C2C22756E6974223A6E756C6C2C226F6273657276655F74696572223A6E756C6C2C2265646765223A6E756C6C7D2C22776F756C645F6265223A6E756C6C7D',NULL);
CREATE TABLE session_steps (
	request_id VARCHAR(64) NOT NULL, 
	session VARCHAR(32) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	key_id VARCHAR(128), 
	client VARCHAR(32) NOT NULL, 
	purpose VARCHAR(16) NOT NULL, 
	step INTEGER NOT NULL, 
	loop_step INTEGER NOT NULL, 
	at VARCHAR(16) NOT NULL, 
	tier INTEGER NOT NULL, 
	previous INTEGER, 
	rule VARCHAR(8) NOT NULL, 
	reason TEXT NOT NULL, 
	gap_seconds DOUBLE, 
	errors INTEGER NOT NULL, 
	repeats INTEGER NOT NULL, 
	bad_calls INTEGER NOT NULL, 
	last_exit VARCHAR(8), 
	prompt_tokens INTEGER NOT NULL, 
	cached_tokens INTEGER NOT NULL, 
	written_tokens INTEGER NOT NULL, 
	completion_tokens INTEGER NOT NULL, 
	cost_usd DOUBLE NOT NULL, 
	strongest_usd DOUBLE NOT NULL, 
	ended VARCHAR(8), 
	end_sign VARCHAR(16), 
	end_weight DOUBLE, 
	trouble JSON, 
	CONSTRAINT pk_session_steps PRIMARY KEY (request_id), 
	CONSTRAINT fk_session_steps_request_id FOREIGN KEY(request_id) REFERENCES requests (request_id) ON DELETE CASCADE
);
CREATE TABLE stored_responses (
	response_id VARCHAR(64) NOT NULL, 
	key_id VARCHAR(128), 
	tenant VARCHAR(128) NOT NULL, 
	previous_response_id VARCHAR(64), 
	conversation VARCHAR(128) NOT NULL, 
	context_bytes BIGINT NOT NULL, 
	input JSON NOT NULL, 
	response JSON NOT NULL, 
	created_at DOUBLE NOT NULL, consent JSON, 
	CONSTRAINT pk_stored_responses PRIMARY KEY (response_id)
);
CREATE TABLE teams (
	team_id VARCHAR(64) NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_teams PRIMARY KEY (team_id)
);
INSERT INTO "teams" VALUES('team_a215c6e0dc7ae48e','research',1.79579001781676793098e+09);
CREATE TABLE tenancy_state (
	state_id INTEGER NOT NULL, 
	revision BIGINT NOT NULL, budgets_revision BIGINT DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_tenancy_state PRIMARY KEY (state_id)
);
INSERT INTO "tenancy_state" VALUES(1,4,4);
CREATE TABLE tool_definitions (
	digest VARCHAR(64) NOT NULL, 
	key_id VARCHAR(128), 
	tools JSON NOT NULL, 
	used_at DOUBLE NOT NULL, 
	CONSTRAINT pk_tool_definitions PRIMARY KEY (digest)
);
CREATE TABLE training_rows (
	training_row_id INTEGER NOT NULL, 
	request_id VARCHAR(64), 
	key_id VARCHAR(128), 
	source VARCHAR(32) NOT NULL, 
	feature_spec VARCHAR(64) NOT NULL, 
	embedding BLOB NOT NULL, 
	features BLOB, 
	no_worse JSON NOT NULL, 
	correct JSON, 
	weights JSON NOT NULL, 
	created_at DOUBLE NOT NULL, tiers JSON, classes JSON, app VARCHAR(16), import_id VARCHAR(64), judge VARCHAR(64), chances JSON, 
	CONSTRAINT pk_training_rows PRIMARY KEY (training_row_id)
);
CREATE TABLE verifications (
	verification_id INTEGER NOT NULL, 
	request_id VARCHAR(64) NOT NULL, 
	key_id VARCHAR(128), 
	tier INTEGER NOT NULL, 
	model TEXT NOT NULL, 
	sampled_probability DOUBLE NOT NULL, 
	sampled_reason VARCHAR(32) NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	verifier_tier INTEGER, 
	verifier_model TEXT, 
	judge VARCHAR(64), 
	judge_reliability DOUBLE, 
	label VARCHAR(16), 
	scores JSON, 
	verifier_answer TEXT, 
	reason TEXT, 
	cost_usd DOUBLE NOT NULL, 
	reserved_usd DOUBLE NOT NULL, 
	attempts INTEGER NOT NULL, 
	owner VARCHAR(128), 
	lease_until DOUBLE, 
	error TEXT, 
	created_at DOUBLE NOT NULL, 
	finished_at DOUBLE, facet TEXT GENERATED ALWAYS AS (CAST(tier AS TEXT) || '/' || status || '/' || COALESCE(label, '') || '/' || COALESCE(judge, '') || '/' || sampled_reason), judged_answer TEXT, judged_cost_usd DOUBLE, compared JSON, turn JSON, tools_digest VARCHAR(64), next_step VARCHAR(16), judging VARCHAR(16), 
	CONSTRAINT pk_verifications PRIMARY KEY (verification_id)
);
CREATE INDEX ix_verifications_created_at ON verifications (created_at);
CREATE INDEX ix_verifications_key_id_created_at ON verifications (key_id, created_at);
CREATE INDEX ix_verifications_status_created_at ON verifications (status, created_at);
CREATE INDEX ix_verifications_tier_created_at ON verifications (tier, created_at);
CREATE UNIQUE INDEX uq_verifications_request_id_tier ON verifications (request_id, tier);
CREATE INDEX ix_training_rows_created_at ON training_rows (created_at);
CREATE INDEX ix_training_rows_key_id_created_at ON training_rows (key_id, created_at);
CREATE INDEX ix_training_rows_source_created_at ON training_rows (source, created_at);
CREATE UNIQUE INDEX uq_training_rows_request_id_source ON training_rows (request_id, source);
CREATE INDEX ix_classifier_versions_created_at ON classifier_versions (created_at);
CREATE INDEX ix_classifier_versions_status_created_at ON classifier_versions (status, created_at);
CREATE INDEX ix_retrain_runs_created_at ON retrain_runs (created_at);
CREATE UNIQUE INDEX uq_retrain_runs_running ON retrain_runs (status) WHERE status = 'running';
CREATE INDEX ix_knob_changes_created_at ON knob_changes (created_at);
CREATE INDEX ix_knob_changes_knob_created_at ON knob_changes (knob, created_at);
CREATE INDEX ix_experiments_created_at ON experiments (created_at);
CREATE INDEX ix_experiments_status_created_at ON experiments (status, created_at);
CREATE INDEX ix_audit_events_action_created_at ON audit_events (action, created_at);
CREATE INDEX ix_audit_events_created_at ON audit_events (created_at);
CREATE INDEX ix_audit_events_actor_created_at ON audit_events (actor, created_at);
CREATE INDEX ix_retrain_runs_status_created_at ON retrain_runs (status, created_at);
CREATE INDEX ix_retrain_runs_trigger_created_at ON retrain_runs ("trigger", created_at);
CREATE INDEX ix_rollouts_created_at ON rollouts (created_at);
CREATE INDEX ix_rollouts_status_created_at ON rollouts (status, created_at);
CREATE UNIQUE INDEX uq_rollouts_running ON rollouts (status) WHERE status = 'running';
CREATE UNIQUE INDEX uq_experiments_running ON experiments (status) WHERE status = 'running';
CREATE INDEX ix_verifications_texts ON verifications (created_at) WHERE reason IS NOT NULL;
CREATE INDEX ix_verifications_facet ON verifications (facet, created_at, verification_id);
CREATE INDEX ix_verifications_key_id_facet ON verifications (key_id, facet, created_at, verification_id);
CREATE INDEX ix_retrain_runs_status_trigger_created_at ON retrain_runs (status, "trigger", created_at);
CREATE INDEX ix_audit_events_action_actor_created_at ON audit_events (action, actor, created_at);
CREATE INDEX ix_erased_embeddings_erased_at ON erased_embeddings (erased_at);
CREATE UNIQUE INDEX uq_teams_name ON teams (name);
CREATE INDEX ix_teams_created_at ON teams (created_at);
CREATE UNIQUE INDEX uq_api_keys_name ON api_keys (name);
CREATE INDEX ix_api_keys_created_at ON api_keys (created_at);
CREATE INDEX ix_api_keys_team_id_created_at ON api_keys (team_id, created_at);
CREATE UNIQUE INDEX uq_budgets_subject_kind_subject_period ON budgets (subject_kind, subject, period);
CREATE INDEX ix_budgets_created_at ON budgets (created_at);
CREATE INDEX ix_budgets_subject_created_at ON budgets (subject, created_at);
CREATE UNIQUE INDEX uq_budget_leases_budget_id_period_key_replica ON budget_leases (budget_id, period_key, replica);
CREATE INDEX ix_classifier_versions_promoted_at ON classifier_versions (promoted_at);
CREATE INDEX ix_files_created_at ON files (created_at);
CREATE INDEX ix_files_expires_at ON files (expires_at);
CREATE INDEX ix_files_key_id_created_at ON files (key_id, created_at);
CREATE INDEX ix_files_tenant_file_id ON files (tenant, file_id);
CREATE INDEX ix_files_tenant_purpose_file_id ON files (tenant, purpose, file_id);
CREATE INDEX ix_api_keys_revision_key_id ON api_keys (revision, key_id);
CREATE INDEX ix_dashboard_users_created_at ON dashboard_users (created_at);
CREATE INDEX ix_dashboard_sessions_user_name ON dashboard_sessions (user_name);
CREATE INDEX ix_dashboard_sessions_expires_at ON dashboard_sessions (expires_at);
CREATE INDEX ix_batches_created_at ON batches (created_at);
CREATE INDEX ix_batches_status_created_at ON batches (status, created_at);
CREATE INDEX ix_batches_key_id_created_at ON batches (key_id, created_at);
CREATE INDEX ix_batches_key_id_status_created_at ON batches (key_id, status, created_at);
CREATE INDEX ix_batches_tenant_batch_id ON batches (tenant, batch_id);
CREATE UNIQUE INDEX uq_batch_lines_batch_id_custom_id ON batch_lines (batch_id, custom_id);
CREATE INDEX ix_batch_lines_batch_id_status_visible_at_number ON batch_lines (batch_id, status, visible_at, number);
CREATE INDEX ix_verifications_spending ON verifications (finished_at, verification_id, sampled_reason, status, request_id, cost_usd, reserved_usd);
CREATE INDEX ix_verifications_verdicts ON verifications (tier, finished_at, verification_id) WHERE label IS NOT NULL;
CREATE INDEX ix_stored_responses_created_at ON stored_responses (created_at);
CREATE INDEX ix_stored_responses_key_id_created_at ON stored_responses (key_id, created_at);
CREATE INDEX ix_outcome_imports_created_at ON outcome_imports (created_at);
CREATE INDEX ix_training_rows_import_id ON training_rows (import_id);
CREATE INDEX ix_verifications_compared ON verifications (finished_at) WHERE compared IS NOT NULL;
CREATE INDEX ix_tool_definitions_used_at ON tool_definitions (used_at);
CREATE INDEX ix_tool_definitions_key_id_used_at ON tool_definitions (key_id, used_at);
CREATE INDEX ix_verifications_judging ON verifications (judging, finished_at) WHERE judging IS NOT NULL;
CREATE INDEX ix_session_steps_session_created_at ON session_steps (session, created_at);
CREATE INDEX ix_session_steps_created_at ON session_steps (created_at);
CREATE INDEX ix_kept_turns_created_at ON kept_turns (created_at);
CREATE INDEX ix_kept_turns_key_id_created_at ON kept_turns (key_id, created_at);
CREATE INDEX ix_kept_turns_tenant_created_at ON kept_turns (tenant, created_at);
CREATE INDEX ix_refused_requests_created_at ON refused_requests (created_at);
CREATE INDEX ix_refused_requests_key_id_created_at ON refused_requests (key_id, created_at);
CREATE INDEX ix_refused_requests_code_created_at ON refused_requests (code, created_at);
CREATE INDEX ix_refused_requests_key_id_code_created_at ON refused_requests (key_id, code, created_at);
CREATE INDEX ix_alert_messages_sent_at ON alert_messages (sent_at);
CREATE INDEX ix_routing_decisions_observed ON routing_decisions (created_at) WHERE would_be_tier IS NOT NULL;
CREATE INDEX ix_routing_decisions_experiment ON routing_decisions (experiment_id, created_at) WHERE experiment_id IS NOT NULL;
CREATE INDEX ix_requests_created_at_tier_cost_usd ON requests (created_at, tier, cost_usd, baseline_cost_usd);
CREATE INDEX ix_requests_key_id_created_at ON requests (key_id, created_at);
CREATE INDEX ix_requests_texts ON requests (created_at, tier, api, status) WHERE messages IS NOT NULL;
CREATE INDEX ix_requests_compared ON requests (compared, created_at) WHERE compared IS NOT NULL;
CREATE INDEX ix_requests_facet ON requests (facet, created_at);
CREATE INDEX ix_requests_key_id_facet ON requests (key_id, facet, created_at);
COMMIT;
