"""The tests of modules that have no test file of their own name, and the test files that are named after a theme.

A test file has the name of a module of its layer, or that name and more (``test_sqlite_rows.py``,
``test_claims_by_data.py``); every other one is a theme and stands here. A module without a test file of its name is
named with the one that covers it.
"""

from __future__ import annotations

from collections.abc import Mapping

COVERS: Mapping[str, str] = {
    "daemon/manager/test_queues.py": "daemon/manager/runs",
    "store/test_sqlite_end_notice.py": "store/relational/settlements",
    "cli/test_stack.py": "cli/show",
    "web/test_streams.py": "web/event_hub",
    "daemon/node/test_rescuer.py": "daemon/node/host_watch",
    "web/test_shared_answers.py": "web/overviews",
    "web/test_beats.py": "web/overviews",
    "store/test_failure_states.py": "insight/failure_states scheduler/failure_states",
    "store/test_releases.py": "insight/releases scheduler/releases",
    "store/test_work_reports.py": "insight/work_reader insight/work_report",
    "store/test_sqlite_wal_preallocation.py": "store/sqlite/files",
    "store/test_sqlite_file_identity.py": "store/sqlite/files",
    "store/test_settle_declared.py": "store/relational/settlements",
    "store/test_mongodb_batches.py": "store/mongodb/settlements",
    "django/test_backend.py": "django/framework django/backend",
    "django/test_checks.py": "django/project django/apps",
    "django/test_dashboard.py": "django/admin django/models django/urls django/views",
    "django/test_outbox.py": "",
    "django/test_taskqueue.py": "django/bootstrap django/preload",
    "django/test_upstream.py": "",
    "scheduler/test_change_race.py": "",
    "scheduler/test_id_texts.py": "scheduler/snapshot",
    "scheduler/test_mistakes.py": "model/other_systems",
    "scheduler/test_limit_states.py": "scheduler/controls",
    "daemon/node/test_retention_clock.py": "daemon/node/clocks",
    "daemon/node/test_clock_watch.py": "daemon/node/clocks",
    "daemon/manager/test_log_monitor.py": "daemon/manager/progress_monitor",
    "acceptance/test_concurrent.py": "",
    "acceptance/test_current_job.py": "",
    "acceptance/test_incidents.py": "",
    "acceptance/test_outbox.py": "daemon/node/leader_run",
    "acceptance/test_leading.py": "daemon/node/node_hooks daemon/protocol/messages",
    "acceptance/test_log_lines.py": "",
    "acceptance/test_waits_in_jobs.py": "insight/deadlock model/blocked_run scheduler/job_wait",
    "acceptance/test_job_metrics.py": "",
    "acceptance/test_metrics.py": "daemon/node/metrics daemon/node/monitor",
    "acceptance/test_mongodb_costs.py": "",
    "acceptance/test_one_node.py": (
        "daemon/node/context daemon/node/node daemon/node/start daemon/node/schedules daemon/node/signals_of_jobs"
    ),
    "acceptance/test_fair_order.py": "",
    "cli/test_burst.py": "daemon/node/burst",
    "acceptance/test_replaced_files.py": "store/backup",
    "acceptance/test_schedules.py": "",
    "acceptance/test_stacks.py": "",
    "chaos/test_node_output.py": "daemon/manager/worker_output",
    "chaos/test_short_hosts.py": "",
    "acceptance/test_seats.py": "daemon/node/host_watch",
    "acceptance/test_fleet.py": "daemon/node/controls",
    "cli/test_add.py": "cli/job_options cli/param_types",
    "cli/test_bench.py": "cli/bench",
    "cli/test_failures.py": "cli/releases",
    "cli/test_controls.py": "cli/stats",
    "cli/test_damage.py": "",
    "cli/test_early_errors.py": "cli/variables cli/context model/raw_value",
    "cli/test_exit.py": "cli/purge",
    "cli/test_health.py": "insight/control_socket",
    "acceptance/test_notifications.py": "daemon/node/leader_run",
    "acceptance/test_notification_mail.py": "notifications/mail",
    "notifications/test_webhook.py": "notifications/receiver notifications/__init__",
    "cli/test_doctor.py": "insight/diagnosis daemon/runtime/host_diagnosis",
    "cli/test_hints.py": "",
    "cli/test_encodings.py": "",
    "cli/test_hostile_text.py": "cli/output",
    "cli/test_list.py": "cli/record_facts",
    "cli/test_log_setup.py": "model/log_fields",
    "cli/test_node.py": "cli/config_file cli/node_options",
    "cli/test_nodes.py": "insight/nodes",
    "cli/test_run.py": "cli/code_reload cli/run",
    "cli/test_secrets.py": "model/environment",
    "cli/test_show.py": "cli/cancel cli/ids cli/wait",
    "cli/test_top.py": (
        "cli/top/actions cli/top/app cli/top/command cli/top/dialogs cli/top/job_text cli/top/panes cli/top/screens "
        "cli/top/store_calls cli/top/targets"
    ),
    "cli/test_top_terminal.py": "",
    "cli/test_web.py": "web/server",
    "cli/test_update.py": "cli/recover cli/output scheduler/json_shapes",
    "daemon/manager/test_manager.py": (
        "daemon/manager/workers daemon/manager/worker_pool daemon/manager/crash_outcomes daemon/protocol/messages"
    ),
    "daemon/manager/test_run_monitor.py": (
        "daemon/manager/worker_handle daemon/manager/progress_monitor daemon/manager/time_limits"
    ),
    "daemon/node/test_fetcher.py": "daemon/node/in_flight",
    "daemon/node/test_health.py": "daemon/node/health daemon/node/monitor",
    "daemon/node/test_in_flight.py": "daemon/node/clocks",
    "daemon/node/test_seat.py": "daemon/node/leases",
    "daemon/runtime/test_child_process.py": "daemon/runtime/child_setup",
    "daemon/protocol/test_encoding.py": "daemon/protocol/codec",
    "daemon/runtime/test_timers.py": "daemon/runtime/loop",
    "daemon/test_costs.py": "",
    "daemon/test_stop.py": "daemon/manager/stop_escalation daemon/node/shutdown",
    "daemon/worker/test_job_loader.py": "execution/loader",
    "daemon/worker/test_stack_dump.py": "daemon/manager/stack_monitor",
    "daemon/worker/test_inspection.py": "daemon/worker/process_attributes",
    "daemon/worker/test_worker.py": "daemon/worker/run_threads daemon/worker/worker_context",
    "daemon/worker/test_concurrent_worker.py": ("daemon/worker/concurrent_run daemon/manager/worker_pool"),
    "execution/test_executor.py": "execution/job_context",
    "execution/test_event_loop.py": "model/run_context",
    "cli/test_config.py": "daemon/settings",
    "model/lifecycle/test_pending.py": (
        "model/lifecycle/outcomes model/lifecycle/claim_end model/lifecycle/transitions model/lifecycle/settle"
    ),
    "model/options/test_apply_declared.py": "model/options/readers model/options/__init__ model/schedules/origin",
    "model/options/test_new_option.py": "",
    "model/options/test_table.py": "model/meta model/options/new_record model/options/validators",
    "model/retry/test_retry.py": ("model/retry/backoff model/retry/by_error model/retry/custom model/retry/decision"),
    "model/schedules/test_fire.py": "model/schedules/schedule model/ids",
    "model/schedules/test_cron_fields.py": "model/schedules/cron",
    "model/schedules/test_trigger.py": (
        "model/schedules/__init__ model/schedules/every model/schedules/schedule model/schedules/series"
    ),
    "model/test_job_path.py": "model/main_module",
    "model/test_record.py": "model/reading model/timestamps",
    "model/test_stepwise.py": "model/lifecycle/continuation model/lifecycle/settle",
    "scheduler/test_async_scheduler.py": ("scheduler/async_handles scheduler/async_waits"),
    "scheduler/test_clients.py": "",
    "scheduler/test_costs.py": "",
    "scheduler/test_dependencies.py": "scheduler/related_jobs",
    "scheduler/test_event_stream.py": "scheduler/event scheduler/poll",
    "scheduler/test_find_jobs.py": "",
    "scheduler/test_audit.py": "scheduler/audit_trail model/secret_keys",
    "scheduler/test_families.py": "",
    "insight/test_overview.py": "insight/overview insight/overview_reader insight/needs",
    "scheduler/test_postgresql_transactions.py": (
        "store/postgresql/arrivals store/postgresql/caller_transaction store/postgresql/sessions"
    ),
    "scheduler/test_process.py": "scheduler/snapshot",
    "scheduler/test_received.py": "execution/received_values model/received",
    "scheduler/test_run_inline.py": "scheduler/run_inline model/run_context",
    "scheduler/test_scheduler.py": "scheduler/connection scheduler/event_stream scheduler/operator_api",
    "scheduler/test_schedules.py": "scheduler/schedule scheduler/schedule_api execution/custom_schedule",
    "scheduler/test_workflows.py": "scheduler/workflows",
    "scheduler/test_stepwise.py": "",
    "scheduler/test_transactions.py": (
        "store/caller_transaction store/sqlite/caller_transaction store/mongodb/caller_transaction"
    ),
    "scheduler/test_types.py": "scheduler/new_jobs model/codecs model/job_types",
    "scheduler/test_wait.py": "scheduler/end_listener insight/records",
    "insight/test_why.py": "insight/why insight/queue_sharing model/wording",
    "insight/test_why_in_short.py": "insight/why",
    "insight/test_why_situations.py": ("insight/limit_places insight/claimed_job"),
    "store/test_unique_periods.py": "model/unique_period",
    "store/test_alike.py": "model/unique_period",
    "store/test_audit.py": "model/audit",
    "store/test_cancel.py": "",
    "store/test_claims.py": ("store/selection store/relational/claims store/mongodb/claim_candidates"),
    "store/test_claims_of_many_queues.py": "store/relational/claim_cache store/mongodb/queue_candidates",
    "store/test_claims_by_data.py": "store/mongodb/claim_candidates",
    "store/test_clock.py": "",
    "store/test_controls.py": "model/controls",
    "store/test_diagnosis.py": "model/finding",
    "store/test_fair_claims.py": "store/mongodb/queue_candidates",
    "store/test_queue_shares.py": "store/queue_shares",
    "store/test_counts.py": (
        "store/relational/add_counts store/relational/counts store/sqlite/database store/postgresql/database "
        "store/mongodb/counts"
    ),
    "store/test_damage.py": "store/reading",
    "store/test_dependencies.py": "model/lifecycle/recovered_copy store/relational/effects store/relational/waits",
    "store/test_events.py": "model/events store/mongodb/change_streams store/relational/event_rows",
    "store/test_families.py": "",
    "store/test_inserts.py": "store/mongodb/unique_keys",
    "store/test_leases.py": "store/relational/renewals store/mongodb/renewals",
    "store/test_mongodb_commands.py": ("store/mongodb/claims store/mongodb/claims store/mongodb/change_streams"),
    "store/test_mongodb_cut_off.py": "store/mongodb/effects",
    "store/test_mongodb_host_bells.py": "store/mongodb/bells",
    "store/test_mongodb_indexes.py": "store/mongodb/index_repair store/mongodb/documents",
    "store/test_mongodb_contended.py": "",
    "store/test_mongodb_meanwhile.py": "",
    "store/test_mongodb_race.py": "",
    "store/test_mongodb_store.py": ("store/mongodb/__init__ store/mongodb/connection"),
    "store/test_queries.py": (
        "store/query_bounds store/relational/filters store/relational/queries store/mongodb/filters "
        "store/mongodb/queries store/mongodb/documents"
    ),
    "store/test_random_graphs.py": "",
    "store/test_series.py": "",
    "store/test_sqlite_bells.py": "store/bell",
    "store/test_sqlite_costs.py": "",
    "store/test_sqlite_faults.py": "store/sqlite/files",
    "store/test_sqlite_processes.py": (
        "store/relational/engine store/relational/transaction store/sqlite/connection store/sqlite/database "
        "store/sqlite/engine"
    ),
    "store/test_sqlite_rows.py": "store/relational/columns store/relational/tables store/sqlite/schema",
    "store/test_sqlite_statements.py": "",
    "store/test_sqlite_url.py": "store/open store/sqlite/__init__",
    "store/test_steps.py": "",
    "store/test_postgresql_connection.py": (
        "store/postgresql/connection store/postgresql/database store/postgresql/driver_errors "
        "store/postgresql/message store/postgresql/schema"
    ),
    "store/test_postgresql_existing_store.py": "store/postgresql/__init__",
    "store/test_postgresql_roles.py": "store/postgresql/roles store/postgresql/__init__",
    "store/test_transactions_run_again.py": "store/relational/engine",
    "store/test_texts.py": "store/arguments",
    "store/test_updates.py": "model/options/update",
    "store/test_settlements.py": "store/codec",
    "testing/test_added.py": "testing/jobs",
    "testing/test_drain.py": "testing/clock testing/jobs testing/__init__",
    "testing/test_mixin.py": "testing/own_store",
    "testing/test_node.py": "testing/crash_point",
    "typing/test_checkers.py": "scheduler/signatures",
    "web/test_merge.py": "",
    "web/test_page_costs.py": "",
    "web/test_browser_actions.py": "",
    "web/test_every_page.py": "",
    "web/test_new_page.py": "",
    "web/test_rights.py": "",
    "web/test_roles.py": "",
    "web/test_paths.py": "web/request_checks",
    "web/test_browser.py": (
        "web/overviews web/pages/audit web/pages/classes web/pages/bulk web/pages/changes "
        "web/pages/failures web/pages/job web/pages/job_form web/pages/jobs web/pages/nodes web/pages/queues "
        "web/pages/schedules web/pages/work"
    ),
    "web/test_api.py": "web/api_routes web/api/jobs web/api/operations web/api/figures",
    "web/test_openapi.py": "web/api/__init__ web/api/route web/api/schemas",
    "web/test_application.py": (
        "web/dashboard web/login web/page_routes web/pages/__init__ web/pages/overview web/problems "
        "web/rendering web/request_checks web/viewers web/sessions web/settings web/view web/masking web/users "
        "web/__init__"
    ),
}
"""The modules without a test file of their name that each of these covers; none where the file is a theme alone."""
