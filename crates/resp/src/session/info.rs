//! INFO and MEMORY STATS: the counts of the node, section by section, as Redis names them.

use std::fmt::Write as _;

use ordain_model::system::Length;
use ordain_model::{Call, Db, Micros, Writer, system};

use super::connection::REDIS_VERSION;
use super::dispatch::{Answered, Place};
use super::{Awaiting, Session, Words};
use crate::acl::Reason;
use crate::shared::Context;

/// The sections of INFO that were asked for, by name in lower case.
#[derive(Debug)]
pub(super) struct Sections(Vec<String>);

/// The sections there are, in Redis's order.
const SECTIONS: [&str; 13] = [
    "server",
    "clients",
    "memory",
    "persistence",
    "stats",
    "replication",
    "cpu",
    "modules",
    "commandstats",
    "errorstats",
    "latencystats",
    "cluster",
    "keyspace",
];

impl Sections {
    fn asked_for(words: &Words<'_>) -> Sections {
        if words.is_empty() {
            return Sections(vec!["default".into()]);
        }
        Sections(words.iter().map(|word| String::from_utf8_lossy(word).to_ascii_lowercase()).collect())
    }

    fn has(&self, section: &str) -> bool {
        let is_default = !matches!(section, "commandstats" | "latencystats");
        let names = |asked: &str| match asked {
            "default" => is_default,
            "all" | "everything" => true,
            asked => asked == section,
        };
        self.0.iter().any(|asked| names(asked))
    }
}

impl Session {
    /// INFO. What it says of the key space is read by a transaction of its own; as a part of EXEC it is left
    /// out.
    pub(super) fn info_command(
        &mut self,
        words: &Words<'_>,
        place: Place,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Answered {
        let sections = Sections::asked_for(&words[1..]);
        if place == Place::Alone
            && (sections.has("keyspace") || sections.has("memory"))
            && let Ok(sequence) = self.submit(Call::new(system::LENGTHS, self.db), cx, |_| {})
        {
            self.wait_for(sequence, Awaiting::Info(sections));
            return Answered::Later;
        }
        info(&sections, None, cx, out);
        Answered::Now
    }

    /// MEMORY STATS and MEMORY MALLOC-STATS.
    pub(super) fn memory_command(
        &mut self,
        words: &Words<'_>,
        place: Place,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Answered {
        if !words.get(1).is_some_and(|word| word.eq_ignore_ascii_case(b"stats")) {
            // As a Redis without jemalloc.
            Writer(out).bulk(b"Stats not supported for the current allocator");
        } else if place == Place::Alone
            && let Ok(sequence) = self.submit(Call::new(system::LENGTHS, self.db), cx, |_| {})
        {
            self.wait_for(sequence, Awaiting::MemoryStats);
            return Answered::Later;
        } else {
            memory_stats(None, cx, out);
        }
        Answered::Now
    }
}

/// Whether the node has a log.
pub(super) fn has_log(cx: &Context<'_>) -> bool {
    cx.shared.settings.iter().any(|setting| setting == ("appendonly", "yes"))
}

/// Writes the sections. `lengths` is the answer of [`system::LENGTHS`].
pub(super) fn info(sections: &Sections, lengths: Option<&[u8]>, cx: &Context<'_>, out: &mut Vec<u8>) {
    let mut text = String::new();
    for section in SECTIONS.iter().filter(|name| sections.has(name)) {
        if !text.is_empty() {
            text.push_str("\r\n");
        }
        let mut title = (*section).to_string();
        title[..1].make_ascii_uppercase();
        if *section == "cpu" {
            title.make_ascii_uppercase();
        }
        // Writing into a string cannot fail, here and below.
        let _ = write!(text, "# {title}\r\n");
        match *section {
            "keyspace" => keyspace(lengths, cx.now, &mut text),
            "errorstats" => {
                for (code, count) in cx.shared.observed.diagnostics.errors() {
                    let code = String::from_utf8_lossy(&code).replace(['\r', '\n', ':'], "_");
                    let _ = write!(text, "errorstat_{code}:count={count}\r\n");
                }
            }
            name => fields(name, cx, &mut |field, value| _ = write!(text, "{field}:{value}\r\n")),
        }
        if *section == "memory"
            && let Some(scripts) = lengths.and_then(|l| system::lengths_reply(l).pop())
        {
            let _ = write!(text, "number_of_cached_scripts:{}\r\n", scripts.records);
        }
    }
    if sections.has("ordain") {
        let _ = write!(text, "\r\n# Ordain\r\n");
        fields("ordain", cx, &mut |field, value| _ = write!(text, "{field}:{value}\r\n"));
    }
    if sections.has("regions") && !cx.shared.node.regions.is_empty() {
        let _ = write!(text, "\r\n# Regions\r\n");
        fields("regions", cx, &mut |field, value| _ = write!(text, "{field}:{value}\r\n"));
    }
    Writer(out).verbatim(*b"txt", text.as_bytes());
}

/// Takes a field and its value.
type Put<'a> = dyn FnMut(&str, &dyn std::fmt::Display) + 'a;

/// The fields of a section.
fn fields(section: &str, cx: &Context<'_>, put: &mut Put<'_>) {
    let node = &cx.shared.node;
    let seconds = |us: u64| format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    match section {
        "server" => server(cx, put),
        "clients" => {
            put("connected_clients", &node.clients);
            put("maxclients", &cx.shared.settings.number("maxclients"));
            put("cluster_connections", &0);
            put("blocked_clients", &0);
            put("tracking_clients", &0);
            put("clients_in_timeout_table", &0);
        }
        "memory" => memory(cx, put),
        "persistence" => {
            put("loading", &0);
            put("async_loading", &0);
            put("rdb_bgsave_in_progress", &i32::from(node.checkpoint_is_made));
            put("rdb_last_save_time", &node.last_save_s());
            put("rdb_last_bgsave_status", &if node.checkpoint_failed { "err" } else { "ok" });
            put("aof_enabled", &i32::from(has_log(cx)));
            put("aof_rewrite_in_progress", &0);
            put("aof_rewrite_scheduled", &0);
            put("aof_last_write_status", &"ok");
            put("aof_last_bgrewrite_status", &"ok");
        }
        "stats" => stats(cx, put),
        "replication" => replication(cx, put),
        "cpu" => {
            put("used_cpu_sys", &seconds(node.cpu_system_us));
            put("used_cpu_user", &seconds(node.cpu_user_us));
        }
        "commandstats" => super::diagnostics::commandstats(cx, put),
        "latencystats" => super::diagnostics::latencystats(cx, put),
        "cluster" => put("cluster_enabled", &0),
        "ordain" => {
            put("engine", &node.engine);
            put("node", &node.node);
            put("threads", &node.threads);
            put("epoch", &node.epoch);
            node.engine_gauges.iter().for_each(|(name, value)| put(name, value));
        }
        "regions" => node.regions.iter().for_each(|(name, value)| put(name, value)),
        _ => {}
    }
}

/// The section `server`: version, process, uptime.
fn server(cx: &Context<'_>, put: &mut Put<'_>) {
    let node = &cx.shared.node;
    let uptime_s = cx.now.since(node.started).0 / 1_000_000;
    put("redis_version", &REDIS_VERSION);
    put("redis_mode", &"standalone");
    put("server_name", &"ordain");
    put("ordain_version", &env!("CARGO_PKG_VERSION"));
    put("os", &node.os);
    put("arch_bits", &usize::BITS);
    put("process_id", &node.process);
    put("run_id", &node.run_id);
    put("tcp_port", &node.port);
    put("server_time_usec", &cx.now.0);
    put("uptime_in_seconds", &uptime_s);
    put("uptime_in_days", &(uptime_s / 86_400));
    put("config_file", &node.config_file);
    put("io_threads_active", &i32::from(node.threads > 1));
}

/// The section `memory`: memory used and its limit.
fn memory(cx: &Context<'_>, put: &mut Put<'_>) {
    let node = &cx.shared.node;
    let memory = &cx.shared.memory;
    let used = if memory.used() > 0 { memory.used() } else { node.memory_bytes };
    put("used_memory", &used);
    put("used_memory_human", &human(used));
    put("used_memory_dataset", &node.memory_bytes);
    put("used_memory_rss", &node.memory_resident_bytes);
    put("used_memory_rss_human", &human(node.memory_resident_bytes));
    put("used_memory_peak", &node.memory_peak_bytes);
    put("used_memory_peak_human", &human(node.memory_peak_bytes));
    put("maxmemory", &memory.limit());
    put("maxmemory_human", &human(memory.limit()));
    put("maxmemory_policy", &"noeviction");
    put("mem_clients_normal", &node.memory_clients_bytes);
    let ratio = node.memory_resident_bytes as f64 / used.max(1) as f64;
    put("mem_fragmentation_ratio", &format!("{ratio:.2}"));
    put("mem_fragmentation_bytes", &node.memory_resident_bytes.saturating_sub(used));
    put("mem_allocator", &"mimalloc");
    put("active_defrag_running", &0);
    put("lazyfree_pending_objects", &0);
}

/// The section `stats`: counts of connections, requests, keys and refusals.
fn stats(cx: &Context<'_>, put: &mut Put<'_>) {
    let node = &cx.shared.node;
    put("total_connections_received", &node.connections_total);
    put("total_commands_processed", &node.commands_total);
    put("instantaneous_ops_per_sec", &node.commands_per_second);
    put("total_net_input_bytes", &node.input_bytes_total);
    put("total_net_output_bytes", &node.output_bytes_total);
    put("rejected_connections", &node.connections_refused_total);
    put("sync_full", &0);
    put("sync_partial_ok", &0);
    put("sync_partial_err", &0);
    put("expired_keys", &node.expired_total);
    put("evicted_keys", &0);
    put("evicted_clients", &0);
    put("keyspace_hits", &node.hits_total);
    put("keyspace_misses", &node.misses_total);
    put("pubsub_channels", &0);
    put("pubsub_patterns", &0);
    for (field, reason) in [
        ("acl_access_denied_auth", Reason::Auth),
        ("acl_access_denied_cmd", Reason::Command),
        ("acl_access_denied_key", Reason::Key),
        ("acl_access_denied_channel", Reason::Channel),
    ] {
        put(field, &cx.shared.access.refused(reason));
    }
    put("pubsubshard_channels", &0);
    put("latest_fork_usec", &0);
    put("total_forks", &0);
    put("tracking_total_keys", &0);
    let diagnostics = &cx.shared.observed.diagnostics;
    let errors: u64 = diagnostics.errors().values().sum();
    put("total_error_replies", &errors);
    let rejected: u64 = diagnostics.commands().iter().map(|(_, stats)| stats.rejected).sum();
    put("rejected_calls", &rejected);
}

/// The section `replication`: the other members, as replicas.
fn replication(cx: &Context<'_>, put: &mut Put<'_>) {
    let node = &cx.shared.node;
    put("role", &"master");
    put("connected_slaves", &node.members.len());
    for (number, (host, port)) in node.members.iter().enumerate() {
        put(
            &format!("slave{number}"),
            &format!("ip={host},port={port},state=online,offset={},lag=0", node.epoch),
        );
    }
    put("master_failover_state", &"no-failover");
    put("master_replid", &node.run_id);
    put("master_replid2", &"0".repeat(40));
    put("master_repl_offset", &node.epoch);
    put("second_repl_offset", &-1);
    put("repl_backlog_active", &0);
    put("repl_backlog_size", &0);
}

/// Writes a line for each database with records: how many, how many of them expire, and after what time on average.
fn keyspace(lengths: Option<&[u8]>, now: Micros, text: &mut String) {
    for (db, length) in lengths.map(system::lengths_reply).unwrap_or_default().into_iter().enumerate() {
        let Length { records, expiring } = length;
        if records > 0 && db < usize::from(Db::COUNT) {
            let expires = expiring.records;
            let at = expiring.at_sum_ms.checked_div(u128::from(expires)).unwrap_or_default();
            let left_ms = at.saturating_sub(u128::from(now.0 / 1000));
            let _ = write!(text, "db{db}:keys={records},expires={expires},avg_ttl={left_ms}\r\n");
        }
    }
}

/// Writes what MEMORY STATS answers. `lengths` is the answer of [`system::LENGTHS`]; without it no key is counted.
pub(super) fn memory_stats(lengths: Option<&[u8]>, cx: &Context<'_>, out: &mut Vec<u8>) {
    enum Figure {
        Count(u64),
        Ratio(f64),
    }
    use Figure::{Count, Ratio};
    let (node, memory) = (&cx.shared.node, &cx.shared.memory);
    let used = if memory.used() > 0 { memory.used() } else { node.memory_bytes };
    let (resident, peak) = (node.memory_resident_bytes, node.memory_peak_bytes.max(used));
    let dataset = node.memory_bytes.min(used);
    let keys = lengths.map(system::lengths_reply).unwrap_or_default();
    let keys = keys.iter().take(usize::from(Db::COUNT)).map(|length| length.records).sum::<u64>();
    let of = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    let figures = [
        ("peak.allocated", Count(peak)),
        ("total.allocated", Count(used)),
        ("startup.allocated", Count(0)),
        ("replication.backlog", Count(0)),
        ("clients.slaves", Count(0)),
        ("clients.normal", Count(node.memory_clients_bytes)),
        ("cluster.links", Count(0)),
        ("aof.buffer", Count(0)),
        ("lua.caches", Count(0)),
        ("functions.caches", Count(0)),
        ("overhead.total", Count(used - dataset)),
        ("keys.count", Count(keys)),
        ("keys.bytes-per-key", Count(dataset.checked_div(keys).unwrap_or(0))),
        ("dataset.bytes", Count(dataset)),
        ("dataset.percentage", Ratio(100.0 * of(dataset, used))),
        ("peak.percentage", Ratio(100.0 * of(used, peak))),
        ("allocator.allocated", Count(used)),
        ("allocator.active", Count(resident)),
        ("allocator.resident", Count(resident)),
        ("allocator-fragmentation.ratio", Ratio(of(resident, used))),
        ("allocator-fragmentation.bytes", Count(resident.saturating_sub(used))),
        ("allocator-rss.ratio", Ratio(1.0)),
        ("allocator-rss.bytes", Count(0)),
        ("rss-overhead.ratio", Ratio(1.0)),
        ("rss-overhead.bytes", Count(0)),
        ("fragmentation", Ratio(of(resident, used))),
        ("fragmentation.bytes", Count(resident.saturating_sub(used))),
    ];
    let mut w = Writer(out);
    w.map(figures.len());
    for (name, figure) in figures {
        w.bulk(name.as_bytes());
        match figure {
            Count(count) => w.int(i64::try_from(count).unwrap_or(i64::MAX)),
            Ratio(ratio) => w.double(ratio),
        }
    }
}

fn human(bytes: u64) -> String {
    let mut size = bytes as f64;
    for unit in ["B", "K", "M", "G"] {
        if size < 1024.0 {
            return format!("{size:.2}{unit}");
        }
        size /= 1024.0;
    }
    format!("{size:.2}T")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_as_redis_shows_them() {
        assert_eq!(
            (human(100), human(1 << 20), human(1 << 50)),
            ("100.00B".into(), "1.00M".into(), "1024.00T".into())
        );
    }
}
