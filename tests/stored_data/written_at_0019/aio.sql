BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0028');
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
	revoked_at DOUBLE, revision BIGINT DEFAULT '0' NOT NULL, quality JSON, min_tier INTEGER, strict BOOLEAN DEFAULT 0 NOT NULL, aliases JSON, 
	CONSTRAINT pk_api_keys PRIMARY KEY (key_id), 
	CONSTRAINT fk_api_keys_team_id FOREIGN KEY(team_id) REFERENCES teams (team_id)
);
INSERT INTO "api_keys" VALUES('key_d9414428842bb97c','notebook',NULL,'sk-aio-nUrpCEvh','0a49ea162a681699bb1c6c2db1158a1abec8235f204ae68880211daf4acce379',NULL,NULL,NULL,'["inference"]',NULL,NULL,1,0,NULL,NULL,NULL,1.79532447653944444649e+09,NULL,NULL,NULL,3,NULL,NULL,0,NULL);
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
INSERT INTO "audit_events" VALUES(1,1.79532447652583098413e+09,'root','team.created','team_157e481e62ae829f',NULL,'{"name":"research"}');
INSERT INTO "audit_events" VALUES(2,1.79532447653944444649e+09,'root','key.created','key_d9414428842bb97c',NULL,'{"name":"notebook","team_id":null,"prefix":"sk-aio-nUrpCEvh","scopes":["inference"],"tiers":null,"models":null,"consent":true,"priority_ceiling":0,"requests_per_minute":null,"tokens_per_minute":null,"concurrency":null,"expires_at":null}');
INSERT INTO "audit_events" VALUES(3,1.79532447659228038784e+09,'root','budget.set','budget_7bba34e50ec99b55',NULL,'{"subject":"key_d9414428842bb97c","period":"day","amount_usd":[null,5.0]}');
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
INSERT INTO "batches" VALUES('batch-01a201ad7e465a55419dc40ffdd22c9a','app','app','/v1/chat/completions','file-01a201ad7e13799f8189d1bcc34972b7','24h',NULL,NULL,NULL,'completed',NULL,'file-01a201ad7e93361f67fdaf717aa313ef',NULL,1,1,0,1.79532447700096869469e+09,1.79541087700096869475e+09,1.79532447703021454813e+09,1.79532447706361770632e+09,1.79532447708222031588e+09,NULL,NULL,NULL,NULL,NULL,NULL);
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
INSERT INTO "budget_leases" VALUES(1,'budget_7bba34e50ec99b55','2026-11-22','replica_42603e724515278f','returned',6,6,38214.219734866,1.79532447667074775699e+09);
CREATE TABLE budgets (
	budget_id VARCHAR(64) NOT NULL, 
	subject_kind VARCHAR(8) NOT NULL, 
	subject VARCHAR(128) NOT NULL, 
	period VARCHAR(8) NOT NULL, 
	amount_microusd BIGINT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_budgets PRIMARY KEY (budget_id)
);
INSERT INTO "budgets" VALUES('budget_7bba34e50ec99b55','key','key_d9414428842bb97c','day',5000000,1.79532447659228038784e+09);
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
INSERT INTO "file_parts" VALUES('file-01a201ad7e13799f8189d1bcc34972b7',0,X'7B22637573746F6D5F6964223A202261222C20226D6574686F64223A2022504F5354222C202275726C223A20222F76312F636861742F636F6D706C6574696F6E73222C2022626F6479223A207B226D6F64656C223A2022746965722D31222C20226D61785F746F6B656E73223A20322C20226D65737361676573223A205B7B22726F6C65223A202275736572222C2022636F6E74656E74223A20226C696E65227D5D7D7D0A');
INSERT INTO "file_parts" VALUES('file-01a201ad7e93361f67fdaf717aa313ef',0,X'7B226964223A2262617463685F7265712D3031613230316164376537623832623366303866316164346138336237366536222C22637573746F6D5F6964223A2261222C22726573706F6E7365223A7B227374617475735F636F6465223A3230302C22726571756573745F6964223A2262617463686C696E652D3031613230316164376537316566616635313631396638636433613264313333222C22626F6479223A7B226964223A2262617463686C696E652D3031613230316164376537316566616635313631396638636433613264313333222C226F626A656374223A22636861742E636F6D706C6574696F6E222C2263726561746564223A313739353332343437372C226D6F64656C223A22736D6F6C6C6D322D696E7434222C2263686F69636573223A5B7B22696E646578223A302C226D657373616765223A7B22726F6C65223A22617373697374616E74222C22636F6E74656E74223A2242756C6F6E6F6D79222C227265667573616C223A6E756C6C2C22616E6E6F746174696F6E73223A5B5D7D2C226C6F6770726F6273223A6E756C6C2C2266696E6973685F726561736F6E223A226C656E677468227D5D2C227573616765223A7B2270726F6D70745F746F6B656E73223A33312C22636F6D706C6574696F6E5F746F6B656E73223A322C22746F74616C5F746F6B656E73223A33332C2270726F6D70745F746F6B656E735F64657461696C73223A7B226361636865645F746F6B656E73223A31367D2C22636F6D706C6574696F6E5F746F6B656E735F64657461696C73223A7B22726561736F6E696E675F746F6B656E73223A307D7D2C2273797374656D5F66696E6765727072696E74223A2266705F35346661343365616332653437363764222C22785F61696F223A7B226465636973696F6E5F6964223A2262617463686C696E652D3031613230316164376537316566616635313631396638636433613264313333222C2274696572223A312C226D6F64656C223A22736D6F6C6C6D322D696E7434222C22705F6F6B223A302E3939392C22636F73745F757364223A35652D362C226F766572686561645F6D73223A302E3431392C22726561736F6E223A2270696E6E656420746F20746965722031222C226361636865223A6E756C6C7D7D7D2C226572726F72223A6E756C6C7D0A');
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
INSERT INTO "files" VALUES('file-01a201ad7e13799f8189d1bcc34972b7','app','app','batch','lines.jsonl',165,'processed',1.79532447694715476035e+09,NULL);
INSERT INTO "files" VALUES('file-01a201ad7e93361f67fdaf717aa313ef','app','app','batch_output','batch-01a201ad7e465a55419dc40ffdd22c9a_output.jsonl',848,'processed',1.79532447707593822484e+09,NULL);
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
INSERT INTO "knob_changes" VALUES(1,1.79532447721826553341e+09,'root','core','max_num_seqs',64,3,NULL,'smollm2-int4',1,NULL);
INSERT INTO "knob_changes" VALUES(2,1.7953244772692945004e+09,'root','routing','safe_tier',NULL,3,NULL,NULL,1,NULL);
INSERT INTO "knob_changes" VALUES(3,1.79532447731892585759e+09,'root','cache','ttl_seconds',30,77,NULL,NULL,1,NULL);
INSERT INTO "knob_changes" VALUES(4,1.7953244773666143417e+09,'root','batches','concurrency',NULL,2,NULL,NULL,1,NULL);
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
	attempts JSON NOT NULL, 
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
	decode_ms DOUBLE, facet TEXT GENERATED ALWAYS AS (COALESCE(CAST(tier AS TEXT), '') || '/' || status || '/' || SUBSTR(requested_model, 1, 256)), 
	CONSTRAINT pk_requests PRIMARY KEY (request_id)
);
INSERT INTO "requests" VALUES('chatcmpl-01a201ad7cfcb3b3d84ab3cea53656b5',1.79532447666866159432e+09,'chat','tier-1','key_d9414428842bb97c',0,'ok',200,NULL,1,'smollm2-int4','[{"tier":1,"model":"smollm2-int4","status":"ok","cost_usd":6e-6,"error":null,"stage":null,"p_ok":null,"reason":null,"replicas":[]}]','[{"role":"user","content":"Stored question 0?"}]','rade devising Added six',NULL,'length',36,4,0,0,6.0e-06,0.00018,5.00060470003518275916e+01,5.27175770039320923388e+01,5.2757347002625465393e+01,5.00605970009928569197e+01,NULL,'miss','replica_42603e724515278f',NULL,0.091329995484557,2.68984000285854563117e+00,2.60599990724585950374e-02);
INSERT INTO "requests" VALUES('chatcmpl-01a201ad7d61d1d8d35670672eaffbaf',1.79532447676969885829e+09,'chat','auto','app',0,'ok',200,NULL,1,'smollm2-int4','[{"tier":1,"model":"smollm2-int4","status":"ok","cost_usd":6e-6,"error":null,"stage":null,"p_ok":null,"reason":null,"replicas":[]}]','[{"role":"user","content":"Stored question 1?"}]',' cores Rockiesrox tong',NULL,'length',36,4,0,0,6.0e-06,0.00018,0.594789999013301,7.57036900176899507641e+00,7.59845900029176846146e+00,6.31349998002406209707e-01,NULL,'miss','replica_42603e724515278f',NULL,6.28509951638989150524e-02,6.95516800624318420886e+00,1.99400019482709467411e-02);
INSERT INTO "requests" VALUES('resp-01a201ad7de0137ed9fff7d76b4cce06',1.79532447689658212659e+09,'chat','tier-1','app',0,'ok',200,NULL,1,'smollm2-int4','[{"tier":1,"model":"smollm2-int4","status":"ok","cost_usd":6e-6,"error":null,"stage":null,"p_ok":null,"reason":null,"replicas":[]}]','[{"role":"user","content":"Stored too?"}]','GAN folatezees Mos',NULL,'length',34,4,16,0,6.0e-06,0.000173,0.782499999331776,2.26914000086253508925e+00,2.40330000087851658463e+00,8.51460012199822813272e-01,NULL,NULL,'replica_42603e724515278f',NULL,8.28899937914684414863e-02,1.44028000795515254139e+00,9.32499970076605677604e-02);
INSERT INTO "requests" VALUES('batchline-01a201ad7e71efaf51619f8cd3a2d133',1.79532447704137110714e+09,'chat','tier-1','app',0,'ok',200,NULL,1,'smollm2-int4','[{"tier":1,"model":"smollm2-int4","status":"ok","cost_usd":5e-6,"error":null,"stage":null,"p_ok":null,"reason":null,"replicas":[]}]','[{"role":"user","content":"line"}]','Bulonomy',NULL,'length',31,2,16,0,5.0e-06,0.000139,3.66979002137668430805e-01,9.3964789994061,9.52292900183238089084e+00,4.38250004663132131099e-01,NULL,NULL,'replica_42603e724515278f','{"batch_id":"batch-01a201ad7e465a55419dc40ffdd22c9a"}',0.0935889984248206,8.97027100290870293974e+00,8.11700010672211647033e-02);
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
CREATE TABLE routing_decisions (
	request_id VARCHAR(64) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	tier INTEGER NOT NULL, 
	reason TEXT NOT NULL, 
	classifier_version VARCHAR(64) NOT NULL, 
	prediction_kind VARCHAR(16) NOT NULL, 
	novelty DOUBLE NOT NULL, 
	quality_target DOUBLE NOT NULL, 
	p_ok JSON NOT NULL, 
	scores JSON NOT NULL, 
	inputs JSON NOT NULL, experiment_id VARCHAR(64), arm VARCHAR(8), would_be_tier INTEGER, 
	CONSTRAINT pk_routing_decisions PRIMARY KEY (request_id), 
	CONSTRAINT fk_routing_decisions_request_id FOREIGN KEY(request_id) REFERENCES requests (request_id) ON DELETE CASCADE
);
INSERT INTO "routing_decisions" VALUES('chatcmpl-01a201ad7cfcb3b3d84ab3cea53656b5',1.79532447666866159432e+09,1,'pinned to tier 1','scripted','measured',0.1,0.95,'[0.999,0.999,0.999,1.0]','[0.00149019415,null,null,null]','{"prediction":{"p_ok":[0.999,0.999,0.999,1.0],"kind":"measured","novelty":0.1,"classifier_version":"scripted","contributions":[],"p_correct":[],"predicted_tokens":[],"p_ok_before":[]},"costs":[2.5e-6,0.0000125,0.000255,0.00025500100000000003],"rule":"lambda","quality_target":0.95,"lambda_":0.050000000000000044,"tau":0.95,"pinned_tier":1,"min_tier":null,"max_cost_usd":null,"exclusions":[],"predicted_waits":[0.0,0.0,0.0,0.0],"novelty_threshold":0.98,"safe_tier":4,"previous_tier":null,"reuse_usd":[],"in_tool_loop":false,"canary":false,"experiment_id":null,"arm":null,"arm_tier":null,"observe_tier":null,"edge":null}',NULL,NULL,NULL);
INSERT INTO "routing_decisions" VALUES('chatcmpl-01a201ad7d61d1d8d35670672eaffbaf',1.79532447676969885829e+09,1,'tier 1 has the least expected loss: P(worse) 0.001 + lambda 0.05 x cost share 0.010','scripted','measured',0.1,0.95,'[0.999,0.999,0.999,1.0]','[0.00149019415,0.0034509708,0.0509998039,0.05]','{"prediction":{"p_ok":[0.999,0.999,0.999,1.0],"kind":"measured","novelty":0.1,"classifier_version":"scripted","contributions":[],"p_correct":[],"predicted_tokens":[],"p_ok_before":[]},"costs":[2.5e-6,0.0000125,0.000255,0.00025500100000000003],"rule":"lambda","quality_target":0.95,"lambda_":0.050000000000000044,"tau":0.95,"pinned_tier":null,"min_tier":null,"max_cost_usd":null,"exclusions":[],"predicted_waits":[0.0,0.0,0.0,0.0],"novelty_threshold":0.98,"safe_tier":4,"previous_tier":null,"reuse_usd":[],"in_tool_loop":false,"canary":false,"experiment_id":null,"arm":null,"arm_tier":null,"observe_tier":null,"edge":null}',NULL,NULL,NULL);
INSERT INTO "routing_decisions" VALUES('resp-01a201ad7de0137ed9fff7d76b4cce06',1.79532447689658212659e+09,1,'pinned to tier 1','scripted','measured',0.1,0.95,'[0.999,0.999,0.999,1.0]','[0.0014545436,null,null,null]','{"prediction":{"p_ok":[0.999,0.999,0.999,1.0],"kind":"measured","novelty":0.1,"classifier_version":"scripted","contributions":[],"p_correct":[],"predicted_tokens":[],"p_ok_before":[]},"costs":[2.25e-6,0.00001125,0.0002475,0.000247501],"rule":"lambda","quality_target":0.95,"lambda_":0.050000000000000044,"tau":0.95,"pinned_tier":1,"min_tier":null,"max_cost_usd":null,"exclusions":[],"predicted_waits":[0.0,0.0,0.0,0.0],"novelty_threshold":0.98,"safe_tier":4,"previous_tier":null,"reuse_usd":[],"in_tool_loop":false,"canary":false,"experiment_id":null,"arm":null,"arm_tier":null,"observe_tier":null,"edge":null}',NULL,NULL,NULL);
INSERT INTO "routing_decisions" VALUES('batchline-01a201ad7e71efaf51619f8cd3a2d133',1.79532447704137110714e+09,1,'pinned to tier 1','scripted','measured',0.1,0.95,'[0.999,0.999,0.999,1.0]','[0.00152380555,null,null,null]','{"prediction":{"p_ok":[0.999,0.999,0.999,1.0],"kind":"measured","novelty":0.1,"classifier_version":"scripted","contributions":[],"p_correct":[],"predicted_tokens":[],"p_ok_before":[]},"costs":[1.375e-6,6.875e-6,0.00013125,0.00013125099999999998],"rule":"lambda","quality_target":0.95,"lambda_":0.050000000000000044,"tau":0.95,"pinned_tier":1,"min_tier":null,"max_cost_usd":null,"exclusions":[],"predicted_waits":[0.0,0.0,0.0,0.0],"novelty_threshold":0.98,"safe_tier":4,"previous_tier":null,"reuse_usd":[],"in_tool_loop":false,"canary":false,"experiment_id":null,"arm":null,"arm_tier":null,"observe_tier":null,"edge":null}',NULL,NULL,NULL);
CREATE TABLE stored_responses (
	response_id VARCHAR(64) NOT NULL, 
	key_id VARCHAR(128), 
	tenant VARCHAR(128) NOT NULL, 
	previous_response_id VARCHAR(64), 
	conversation VARCHAR(128) NOT NULL, 
	context_bytes BIGINT NOT NULL, 
	input JSON NOT NULL, 
	response JSON NOT NULL, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_stored_responses PRIMARY KEY (response_id)
);
CREATE TABLE teams (
	team_id VARCHAR(64) NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_teams PRIMARY KEY (team_id)
);
INSERT INTO "teams" VALUES('team_157e481e62ae829f','research',1.79532447652583098413e+09);
CREATE TABLE tenancy_state (
	state_id INTEGER NOT NULL, 
	revision BIGINT NOT NULL, budgets_revision BIGINT DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_tenancy_state PRIMARY KEY (state_id)
);
INSERT INTO "tenancy_state" VALUES(1,4,4);
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
	created_at DOUBLE NOT NULL, tiers JSON, classes JSON, app VARCHAR(16), 
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
	finished_at DOUBLE, facet TEXT GENERATED ALWAYS AS (CAST(tier AS TEXT) || '/' || status || '/' || COALESCE(label, '') || '/' || COALESCE(judge, '') || '/' || sampled_reason), judged_answer TEXT, judged_cost_usd DOUBLE, 
	CONSTRAINT pk_verifications PRIMARY KEY (verification_id)
);
INSERT INTO "verifications" VALUES(1,'chatcmpl-01a201ad7d61d1d8d35670672eaffbaf','app',1,'smollm2-int4',1.0,'feedback','done',NULL,NULL,'user',1.0,'worse','{"user":0.0}',NULL,'the user''s score is 0',0.0,0.0,0,NULL,NULL,NULL,1795324476.83186,1795324476.83186,NULL,NULL);
CREATE INDEX ix_routing_decisions_classifier_version_created_at ON routing_decisions (classifier_version, created_at);
CREATE INDEX ix_routing_decisions_created_at ON routing_decisions (created_at);
CREATE INDEX ix_routing_decisions_tier_created_at ON routing_decisions (tier, created_at);
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
CREATE INDEX ix_routing_decisions_experiment_id_created_at ON routing_decisions (experiment_id, created_at);
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
CREATE INDEX ix_requests_key_id_created_at ON requests (key_id, created_at);
CREATE INDEX ix_requests_facet ON requests (facet, created_at, request_id);
CREATE INDEX ix_requests_key_id_facet ON requests (key_id, facet, created_at, request_id);
CREATE INDEX ix_requests_created_at_tier_cost_usd ON requests (created_at, tier, cost_usd);
CREATE INDEX ix_requests_texts ON requests (created_at, tier, api, status) WHERE messages IS NOT NULL;
CREATE INDEX ix_verifications_spending ON verifications (finished_at, verification_id, sampled_reason, status, request_id, cost_usd, reserved_usd);
CREATE INDEX ix_verifications_verdicts ON verifications (tier, finished_at, verification_id) WHERE label IS NOT NULL;
CREATE INDEX ix_routing_decisions_observed ON routing_decisions (created_at) WHERE would_be_tier IS NOT NULL;
CREATE INDEX ix_stored_responses_created_at ON stored_responses (created_at);
CREATE INDEX ix_stored_responses_key_id_created_at ON stored_responses (key_id, created_at);
COMMIT;
