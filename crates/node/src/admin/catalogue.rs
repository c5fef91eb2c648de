//! What each metric means: the HELP lines of `/metrics`, and the table of docs/operate.md.

/// Metrics and their meanings, in order of name. The unit is in the name.
#[rustfmt::skip]
const METRICS: &[(&str, &str)] = &[
    ("ordain_acl_denied_auth_total", "Logins refused."),
    ("ordain_acl_denied_channel_total", "Requests refused for lack of a right to a channel."),
    ("ordain_acl_denied_command_total", "Requests refused for lack of a right to a command."),
    ("ordain_acl_denied_key_total", "Requests refused for lack of a right to a key."),
    ("ordain_admin_connections", "Open connections of the admin server."),
    ("ordain_admin_late_total", "Connections of the admin server that were closed because they lay idle, or the client took too long over a request or its answer."),
    ("ordain_admin_refused_total", "Connections of the admin server that were closed because there were too many."),
    ("ordain_archive_epoch", "Epoch of the newest checkpoint in the object store."),
    ("ordain_archive_failing", "1 while checkpoints do not get to the object store."),
    ("ordain_archive_failures_total", "Attempts to upload a checkpoint that failed."),
    ("ordain_archive_kept", "Checkpoints in the object store."),
    ("ordain_archive_uploaded_bytes_total", "Bytes of checkpoints uploaded."),
    ("ordain_archive_uploaded_total", "Checkpoints uploaded."),
    ("ordain_archive_uploading", "1 while a checkpoint is uploaded."),
    ("ordain_batch_bytes", "Size of the batches that this node's sequencer closed, in bytes of requests."),
    ("ordain_batch_transactions", "Size of the batches that this node's sequencer closed, in transactions."),
    ("ordain_certificates_failing", "1 while new files of certificates are not used because something is wrong with them."),
    ("ordain_certificates_renewed_total", "Certificates replaced while the node ran."),
    ("ordain_checkpoint_bytes", "Bytes of the checkpoint written last."),
    ("ordain_checkpoint_completed_total", "Checkpoints completed since the start."),
    ("ordain_checkpoint_copying", "Checkpoints that are copied to or from another node."),
    ("ordain_checkpoint_epoch", "Epoch of the newest complete checkpoint; 0 without one."),
    ("ordain_checkpoint_failing", "1 if the last checkpoint that was begun came to nothing."),
    ("ordain_checkpoint_given_up_total", "Checkpoints begun and given up."),
    ("ordain_checkpoint_kept", "Complete checkpoints on disk."),
    ("ordain_checkpoint_needed_epoch", "Above 0: a start needs a checkpoint that covers this epoch, and asks the other members for one."),
    ("ordain_checkpoint_saved_epoch", "Epoch up to which this node's part of a checkpoint is on disk."),
    ("ordain_checkpoint_seconds", "When the newest checkpoint became complete, as Unix time."),
    ("ordain_checkpoint_writing", "1 while a checkpoint is written."),
    ("ordain_command_seconds", "Time from when a request was read until its reply was made, by command family; waiting for the order included."),
    ("ordain_commands_failed_total", "Requests that were answered with an error."),
    ("ordain_configuration_entries_total", "Configuration entries agreed on."),
    ("ordain_configuration_service_has_arrived", "1 once the configuration service knows of this node."),
    ("ordain_configuration_service_in_sync", "Followers that could take over the partition now."),
    ("ordain_configuration_service_is_fenced", "1 while no primary is agreed on for the partition."),
    ("ordain_configuration_service_leads", "1 on the node that leads the configuration service."),
    ("ordain_configuration_service_primary", "Number of the node that is the partition's primary."),
    ("ordain_configuration_service_restored_batches_total", "Batches put together again when a primary was replaced."),
    ("ordain_configuration_service_successions_total", "Terms that this node prepared as the next primary."),
    ("ordain_configuration_service_term", "Term of the partition's primary."),
    ("ordain_configuration_service_version", "Version of the configuration."),
    ("ordain_connections", "Open client connections."),
    ("ordain_connections_refused_total", "Connections turned away because of maxclients."),
    ("ordain_connections_total", "Client connections ever accepted."),
    ("ordain_disk_sync_seconds", "Time of a write and its fsync that a batch waits for."),
    ("ordain_exchange_behind_epoch", "Above 0: what comes after this epoch is in no other node's log any more, and a checkpoint is fetched."),
    ("ordain_exchange_catch_up_epoch", "Above 0: input of other partitions up to this epoch is missing here and is fetched."),
    ("ordain_exchange_duplicates_total", "Messages of other partitions that had arrived already."),
    ("ordain_exchange_durable_epoch", "Epoch up to which input and remote results are journaled."),
    ("ordain_exchange_fetched_total", "Slices read from another replica."),
    ("ordain_exchange_gaps_total", "Gaps found in what other partitions sent."),
    ("ordain_exchange_held_back", "Batches held back until their primary is known to count."),
    ("ordain_exchange_kept_bytes", "Bytes kept for nodes that may ask for them again."),
    ("ordain_exchange_lost_nodes", "Nodes that are not reached and may have to be substituted."),
    ("ordain_exchange_progress_epoch", "Epoch up to which everything of all partitions is executed here."),
    ("ordain_exchange_remote_results_received_total", "Messages with remote results received."),
    ("ordain_exchange_remote_results_sent_total", "Messages with remote results sent."),
    ("ordain_exchange_sealed_epoch", "Epoch that this partition sealed last."),
    ("ordain_exchange_sent_again_total", "Messages sent again to nodes that had lost them."),
    ("ordain_exchange_served_total", "Slices that another replica was given."),
    ("ordain_exchange_slices_received_total", "Parts of other partitions' batches received."),
    ("ordain_exchange_slices_sent_total", "Parts of batches sent to other partitions."),
    ("ordain_exchange_substituted_total", "Messages sent in the place of a lost node."),
    ("ordain_exchange_unfinished_batches", "Batches handed to the shards and not executed."),
    ("ordain_exchange_unfounded", "Above 0: nodes of this replica that have yet to meet for the first time."),
    ("ordain_exchange_waiting_batches", "Batches that wait for those of other partitions before them in the order."),
    ("ordain_front_commands_total", "Requests read."),
    ("ordain_front_connections", "Open connections of an event loop."),
    ("ordain_front_cut_off_total", "Connections cut off because they spoke another protocol."),
    ("ordain_front_input_bytes_total", "Bytes of requests read."),
    ("ordain_front_output_bytes_total", "Bytes of replies written."),
    ("ordain_front_output_limit_total", "Connections closed because they did not read their replies."),
    ("ordain_front_outstanding", "Transactions whose outcome is awaited."),
    ("ordain_group_bytes_in_memory", "Bytes of the replicated log that are kept in memory."),
    ("ordain_group_commit", "Index of the last entry that the replication group has agreed on."),
    ("ordain_group_confirm_rounds_total", "Quorum rounds by which this node has confirmed that it leads."),
    ("ordain_group_confirmed_total", "Questions whether this node leads that such rounds have confirmed."),
    ("ordain_group_dispatched", "Index of the last entry that is executed or being executed."),
    ("ordain_group_elections_won_total", "Elections that this node has won."),
    ("ordain_group_entries_in_memory", "Entries of the replicated log that are kept in memory."),
    ("ordain_group_fetches_total", "Reads of the replicated log from disk, for members that are behind."),
    ("ordain_group_first", "Index of the first entry that this node still has."),
    ("ordain_group_is_leader", "1 on the leader of a replication group."),
    ("ordain_group_is_voter", "0 on a member that its replication group does not count on yet, or would not after a loss of power."),
    ("ordain_group_last", "Index of the last entry of the replicated log."),
    ("ordain_group_leader", "Number of the node that leads the replication group; -1: none is known."),
    ("ordain_group_learners", "Members of the replication group that do not vote."),
    ("ordain_group_lost_total", "Proposals that were lost with a leader, and made again."),
    ("ordain_group_members", "Voting members of the replication group."),
    ("ordain_group_open_proposals", "Batches proposed and not agreed on."),
    ("ordain_group_term", "Term of the replication group."),
    ("ordain_group_unfounded", "Above 0: members that have yet to meet for the group's first time."),
    ("ordain_link_kept_bytes", "Bytes that the other node has not acknowledged."),
    ("ordain_link_received_bytes_total", "Bytes received from the other node."),
    ("ordain_link_reconnects_total", "Connections to the other node made again."),
    ("ordain_link_round_trip_seconds", "Round trip to the other node, at the last heartbeat."),
    ("ordain_link_sent_bytes_total", "Bytes sent to the other node."),
    ("ordain_link_up", "1 while the other node is reached."),
    ("ordain_lock_manager_grants_total", "calvin-paper: transactions handed to shards."),
    ("ordain_lock_manager_in_flight", "calvin-paper: transactions that the lock manager has under way."),
    ("ordain_lock_manager_locked_keys", "calvin-paper: keys that are locked."),
    ("ordain_lock_manager_locks_total", "calvin-paper: locks granted."),
    ("ordain_lock_manager_waited_for_lock_total", "calvin-paper: transactions that had to wait for a lock."),
    ("ordain_log_behind_epoch", "Above 0: the other members do not keep any more what comes after this epoch, and a checkpoint is fetched."),
    ("ordain_log_bytes", "Size of the input log on disk."),
    ("ordain_log_dispatched_batches_total", "Batches durable or agreed on, and handed on to be executed."),
    ("ordain_log_durable_epoch", "Last epoch of the input log that is durable."),
    ("ordain_log_durable_record", "Last record of the replicated log that is durable."),
    ("ordain_log_full", "1 while the disk is full, and writes are refused."),
    ("ordain_log_pending_entries", "Entries written and not durable."),
    ("ordain_log_segments", "Files of the input log."),
    ("ordain_log_waiting_batches", "Batches that wait until they are durable."),
    ("ordain_loop_cpu_seconds_total", "Processor time of an event loop."),
    ("ordain_loop_longest_turn_seconds", "How long the longest of the event loops' present turns takes already; 0 if all rest."),
    ("ordain_loop_messages_sent_total", "Messages sent to other event loops."),
    ("ordain_loop_sleeps_total", "How often an event loop went to sleep."),
    ("ordain_loop_turn_seconds", "Time of an event loop's turn in which there was something to do."),
    ("ordain_loop_turns_total", "Turns of an event loop."),
    ("ordain_memory_limit_bytes", "The limit of memory, `maxmemory`; 0: no limit."),
    ("ordain_network_connected", "Other nodes that are connected."),
    ("ordain_network_input_bytes_total", "Bytes received from all other nodes."),
    ("ordain_network_kept_bytes", "Bytes that other nodes have not acknowledged."),
    ("ordain_network_output_bytes_total", "Bytes sent to all other nodes."),
    ("ordain_network_peers", "Other nodes of the cluster."),
    ("ordain_network_reconnects_total", "Connections to other nodes made again."),
    ("ordain_process_resident_memory_bytes", "Resident memory of the process."),
    ("ordain_role_cpu_seconds_total", "Processor time of a role, where it is metered."),
    ("ordain_role_event_seconds", "Time that a role took to handle an event."),
    ("ordain_role_events_total", "Events that a role has handled."),
    ("ordain_script_seconds", "Time that a script or function ran, waiting not included; a long one's first try on its event loop, replay and library code of FUNCTION LOAD are not counted."),
    ("ordain_sequencer_batches_total", "Batches closed."),
    ("ordain_sequencer_busy_total", "Transactions turned away because too many wait."),
    ("ordain_sequencer_duplicates_total", "Requests of sessions that had been sequenced before."),
    ("ordain_sequencer_epoch", "Epoch that this node's sequencer sealed last."),
    ("ordain_sequencer_in_log", "Batches that wait for the log."),
    ("ordain_sequencer_lost_total", "Transactions whose batch was lost with a leader, and that were sequenced again."),
    ("ordain_sequencer_passed_on_total", "Transactions passed on to the leader."),
    ("ordain_sequencer_read_chunks_total", "Groups of reads on snapshots."),
    ("ordain_sequencer_refused_total", "Writes refused because the disk is full."),
    ("ordain_sequencer_transactions_total", "Transactions sequenced."),
    ("ordain_sequencer_waiting", "Transactions that wait to be sequenced."),
    ("ordain_shard_aborted_total", "Transactions that aborted, counted by the shard that composes the reply."),
    ("ordain_shard_aborts_total", "Transactions that aborted, by reason."),
    ("ordain_shard_affected_total", "qstore: transactions that a cascading abort reached: executed again, or aborted with `--cascade abort`."),
    ("ordain_shard_applied_epoch", "Epoch of the last batch that a shard has executed."),
    ("ordain_shard_blocked_total", "Transactions that had to wait for another shard or a lock."),
    ("ordain_shard_cascade_rounds_total", "qstore: rounds in which shards agreed on cascading aborts."),
    ("ordain_shard_committed_total", "Transactions that committed, counted by the shard that composes the reply. After a start the replayed ones count."),
    ("ordain_shard_computing", "Computations that were given away and are not done."),
    ("ordain_shard_copied_total", "Records copied to where their slot is to move."),
    ("ordain_shard_doubts_total", "Batches after which members of a replication group had different digests."),
    ("ordain_shard_expired_total", "Records removed because their time had come."),
    ("ordain_shard_given_away_total", "Computations that took longer than an event loop may stand still."),
    ("ordain_shard_grants_total", "calvin-paper: grants received."),
    ("ordain_shard_hits_total", "Reads of a key that found a record."),
    ("ordain_shard_in_flight", "Transactions under way in a shard."),
    ("ordain_shard_locked_records", "Locked records."),
    ("ordain_shard_map_version", "Version of the map of hash slots."),
    ("ordain_shard_misses_total", "Reads of a key that found no record."),
    ("ordain_shard_out_of_order_grants", "calvin-paper: grants that came before their transaction."),
    ("ordain_shard_out_of_order_items", "Remote results that came before their transaction."),
    ("ordain_shard_planning_batches", "qstore: planning batches that are not done."),
    ("ordain_shard_queued_fragments", "qstore: fragments planned and not run."),
    ("ordain_shard_repeated_total", "Remote results that were received again."),
    ("ordain_shard_rested_total", "Times that a transaction stopped in its midst so that others had their turn."),
    ("ordain_shard_slots", "Hash slots of a shard."),
    ("ordain_shard_snapshot_chunks", "Groups of reads on snapshots that wait."),
    ("ordain_shard_snapshot_gathering", "Reads on snapshots that wait for other shards."),
    ("ordain_shard_snapshot_kept_epochs", "How many epochs back reads on snapshots may look."),
    ("ordain_shard_snapshot_reads_total", "Reads on snapshots."),
    ("ordain_shard_snapshot_too_old_total", "Reads on snapshots that came too late and were made again."),
    ("ordain_shard_snapshot_waits_total", "Reads on snapshots that waited for their epoch."),
    ("ordain_shard_speculative_batches_total", "qstore: remainders of epochs executed speculatively."),
    ("ordain_shard_turned_back_total", "Transactions planned again because a slot had moved."),
    ("ordain_shard_undone_total", "qstore: speculatively executed transactions that aborted."),
    ("ordain_shard_waited_for_lock_total", "Transactions that had to wait for a lock."),
    ("ordain_ship_behind_bytes", "async: bytes that the slowest follower does not have; 0 on followers."),
    ("ordain_ship_behind_epochs", "async: epochs that the slowest follower does not have; 0 on followers."),
    ("ordain_ship_is_primary", "async: 1 on the primary."),
    ("ordain_ship_kept_bytes", "async: bytes of batches kept for followers."),
    ("ordain_ship_live_members", "async: followers that are sent batches as they are made."),
    ("ordain_ship_not_there_total", "async: requests for batches that are not kept any more."),
    ("ordain_ship_read_again_total", "async: batches read from disk for a follower."),
    ("ordain_ship_shipped_batches_total", "async: batches sent to followers."),
    ("ordain_ship_shipped_epoch", "async: epoch of the last batch dispatched."),
    ("ordain_ship_taken_batches_total", "async: batches taken from the primary."),
    ("ordain_ship_term", "async: term of the primary."),
    ("ordain_slow_commands_total", "Requests that took longer than slowlog-log-slower-than."),
    ("ordain_stage_seconds", "Time that a batch spends in a stage: sequencing, log or agreement, execution; and replies from outcome to socket."),
    ("ordain_store_changed_records", "Records of which older contents are kept."),
    ("ordain_store_memory_bytes", "Memory of records, keys, values and indexes."),
    ("ordain_store_older_of_a_record_max", "Older contents of the record that has most of them."),
    ("ordain_store_older_of_a_record_p99", "Older contents of a record, 99th percentile."),
    ("ordain_store_older_records", "Older contents kept for reads on snapshots and checkpoints."),
    ("ordain_store_records", "Records, expired ones that are not removed yet included."),
    ("ordain_takes_transactions", "1 once the role that takes this node's transactions has started."),
];

/// The meaning of a metric, or a text that it has no description.
pub(super) fn help(name: &str) -> &'static str {
    let found = METRICS.binary_search_by_key(&name, |(name, _)| name);
    found.ok().and_then(|at| METRICS.get(at)).map_or("No description.", |(_, help)| help)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Metrics whose names do not tell that they are distributions.
    const SIZES: [&str; 2] = ["ordain_batch_bytes", "ordain_batch_transactions"];
    /// Metrics in seconds that are levels.
    const LEVELS: [&str; 3] =
        ["ordain_checkpoint_seconds", "ordain_link_round_trip_seconds", "ordain_loop_longest_turn_seconds"];

    /// The kind of a metric by the rules of its name.
    fn kind(name: &str) -> &'static str {
        if name.ends_with("_total") {
            "counter"
        } else if SIZES.contains(&name) || (name.ends_with("_seconds") && !LEVELS.contains(&name)) {
            "histogram"
        } else {
            "gauge"
        }
    }

    #[test]
    fn metrics_are_in_order_and_in_the_table_of_the_manual() {
        let manual = include_str!("../../../../docs/operate.md");
        let (_, table) = manual.split_once("| metric | kind | unit | meaning |\n").unwrap();
        let rows = table.lines().skip(1).map_while(|line| {
            let mut cells = line.strip_prefix("| `")?.strip_suffix(" |")?.splitn(4, " | ");
            let (name, kind, _unit) = (cells.next()?.strip_suffix('`')?, cells.next()?, cells.next()?);
            Some((name, kind, cells.next()?))
        });
        let rows: Vec<(&str, &str, &str)> = rows.collect();
        assert!(METRICS.is_sorted_by(|(one, _), (other, _)| one < other));
        for (row, (name, help)) in rows.iter().zip(METRICS) {
            assert!(help.ends_with('.'), "{name}");
            assert_eq!(*row, (*name, kind(name), *help));
        }
        assert_eq!(rows.len(), METRICS.len());
        assert_eq!(help("ordain_link_up"), "1 while the other node is reached.");
    }
}
