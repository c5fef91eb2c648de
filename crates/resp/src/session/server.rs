//! INFO, CONFIG and the other commands about the server.

use std::fmt::Write as _;

use ordain_commands::glob_matches;
use ordain_commands::script::is_function;
use ordain_model::key::SLOTS;
use ordain_model::system::{CopyPart, Length};
use ordain_model::{
    ArgsBuilder, Call, Computations, Db, Ending, Micros, PartitionId, PlanError, Position, ProcedureId,
    Writer, system,
};

use super::connection::REDIS_VERSION;
use super::connection::number;
use super::dispatch::{Answered, Place, help_or_wrong_arity, refuse, wrong_arity};
use super::{Awaiting, Session, Words};
use crate::acl::Reason;
use crate::shared::{Context, NOT_INTEGER, NodeInfo, SettingError};

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

    /// Submits a transaction that a command is outside of MULTI alone; `what` names the command in the refusal.
    fn submit_alone(
        &mut self,
        procedure: ProcedureId,
        what: &str,
        place: Place,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
        write_args: impl FnOnce(&mut ArgsBuilder<'_>),
    ) -> Answered {
        if place != Place::Alone {
            return refuse(
                format!("ERR {what} is a transaction of its own: run it outside of MULTI and TXN.BEGIN"),
                out,
            );
        }
        match self.submit(Call::new(procedure, self.db), cx, write_args) {
            Ok(_) => Answered::Later,
            Err(refusal) => refuse(&refusal.0, out),
        }
    }

    /// BGSAVE: a transaction that cuts a checkpoint. Its answer comes when that is cut; when it is complete LASTSAVE tells.
    pub(super) fn bgsave(
        &mut self,
        words: &Words<'_>,
        place: Place,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Answered {
        match &words[1..] {
            [] => {}
            [schedule] if schedule.eq_ignore_ascii_case(b"schedule") => {}
            _ => return refuse("ERR syntax error", out),
        }
        if place == Place::Alone && !has_log(cx) {
            return refuse("ERR this node keeps nothing (--ephemeral), so there is nothing to save", out);
        }
        self.submit_alone(system::CHECKPOINT, "BGSAVE", place, cx, out, |_| {})
    }

    /// DEBUG MOVE-SLOTS first last partition: a transaction that moves slots to a partition, with what is in them.
    pub(super) fn move_slots(
        &mut self,
        words: &Words<'_>,
        place: Place,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Answered {
        let [_, _, first, last, to] = words else {
            return refuse(wrong_arity("debug", "move-slots"), out);
        };
        let (Some(first), Some(last), Some(to)) = (number(first), number(last), number(to)) else {
            return refuse(NOT_INTEGER, out);
        };
        if first > last || last >= SLOTS as u64 {
            return refuse("ERR slots are 0 to 1023, the first not after the last", out);
        }
        let to = match partition(to, cx) {
            Ok(to) => to,
            Err(text) => return refuse(text, out),
        };
        self.submit_alone(system::MOVE, "a move of slots", place, cx, out, |args| {
            system::move_args(&(first as usize..last as usize + 1), to, args);
        })
    }

    /// DEBUG COPY-SLOT slot partition [position]: a transaction that copies a part of a slot to where it is to move. Answers the
    /// position of the next part.
    pub(super) fn copy_slot(
        &mut self,
        words: &Words<'_>,
        place: Place,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
    ) -> Answered {
        let (slot, to, from) = match words[2..] {
            [slot, to] => (number(slot), number(to), None),
            [slot, to, from] => (number(slot), number(to), Some(number(from))),
            _ => return refuse(wrong_arity("debug", "copy-slot"), out),
        };
        let (Some(slot), Some(to), false) = (slot, to, from == Some(None)) else {
            return refuse(NOT_INTEGER, out);
        };
        let from = from.flatten().map_or(Position::of_slot(slot.min(SLOTS as u64) as usize), Position);
        if slot >= SLOTS as u64 || from.slot() as u64 != slot {
            return refuse("ERR slots are 0 to 1023, and a part begins in its slot", out);
        }
        let to = match partition(to, cx) {
            Ok(to) => to,
            Err(text) => return refuse(text, out),
        };
        self.submit_alone(system::COPY, "a copy of a slot", place, cx, out, |args| {
            CopyPart { to, from, records: COPIED_RECORDS, bytes: COPIED_BYTES }.write(args);
        })
    }
}

/// The partition of a number, if there is one.
fn partition(number: u64, cx: &Context<'_>) -> Result<PartitionId, String> {
    let partitions = cx.gateway.partitions();
    match u16::try_from(number) {
        Ok(number) if number < partitions => Ok(PartitionId(number)),
        _ => Err(format!("ERR there is no partition {number}: this cluster has {partitions}, from 0 on")),
    }
}

/// A part of a slot that is copied has so many records at most, and about so many bytes: some milliseconds' work.
const COPIED_RECORDS: usize = 2048;
const COPIED_BYTES: usize = 512 << 10;

fn has_log(cx: &Context<'_>) -> bool {
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
    Writer(out).verbatim(*b"txt", text.as_bytes());
}

fn fields(section: &str, cx: &Context<'_>, put: &mut dyn FnMut(&str, &dyn std::fmt::Display)) {
    let node: &NodeInfo = &cx.shared.node;
    let uptime_s = cx.now.since(node.started).0 / 1_000_000;
    let seconds = |us: u64| format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    match section {
        "server" => {
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
        "clients" => {
            put("connected_clients", &node.clients);
            put("maxclients", &cx.shared.settings.number("maxclients"));
            put("cluster_connections", &0);
            put("blocked_clients", &0);
            put("tracking_clients", &0);
            put("clients_in_timeout_table", &0);
        }
        "memory" => {
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
        "stats" => {
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
        "replication" => {
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
        _ => {}
    }
}

/// Of each database with records: how many, how many of them expire, and after what time on average.
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

/// The encoding of the integer 0.
pub(super) fn zero() -> Vec<u8> {
    let mut datum = Vec::new();
    Writer(&mut datum).int(0);
    datum
}

/// CONFIG and its subcommands.
pub(super) fn config(words: &Words<'_>, cx: &mut Context<'_>, out: &mut Vec<u8>) {
    let mut w = Writer(out);
    let sub = words[1].to_ascii_lowercase();
    match (&*sub, &words[2..]) {
        (b"get", patterns @ [_, ..]) => {
            let patterns: Vec<Vec<u8>> = patterns.iter().map(|p| p.to_ascii_lowercase()).collect();
            let chosen: Vec<(&str, &str)> = (cx.shared.settings.iter())
                .filter(|(name, _)| patterns.iter().any(|pattern| glob_matches(pattern, name.as_bytes())))
                .collect();
            w.map(chosen.len());
            for (name, value) in chosen {
                w.bulk(name.as_bytes());
                w.bulk(value.as_bytes());
            }
        }
        (b"set", pairs @ [_, _, ..]) if pairs.len() % 2 == 0 => config_set(pairs, cx, &mut w),
        (b"set", [_, _, ..]) => w.error("ERR syntax error"),
        (b"resetstat", []) => {
            cx.shared.observed.diagnostics.reset_commands();
            cx.control.reset_statistics();
            w.ok();
        }
        (b"rewrite", []) => w.error("ERR this server does not write its config file"),
        _ => help_or_wrong_arity(
            "config",
            words,
            &[
                "GET <pattern> ...: parameters and their values.",
                "RESETSTAT: sets the counters of INFO to zero.",
                "SET <parameter> <value> ...: changes parameters, until the next start.",
            ],
            &mut w,
        ),
    }
}

/// All or nothing, as in Redis.
fn config_set(words: &Words<'_>, cx: &mut Context<'_>, w: &mut Writer<'_>) {
    let pairs: Vec<(String, String)> = (words.as_chunks::<2>().0.iter())
        .map(|[name, value]| {
            let name = String::from_utf8_lossy(name).to_ascii_lowercase();
            (name, String::from_utf8_lossy(value).into_owned())
        })
        .collect();
    // Errors about a name quote it as it was sent, as in Redis.
    let mut failed = |name: &[u8], reason: &str| {
        let before = "ERR CONFIG SET failed (possibly related to argument '";
        w.error(PlanError::quoting(before, name, &format!("') - {reason}")).0);
    };
    // Redis looks at all names first, then at the values.
    for (at, (name, value)) in pairs.iter().enumerate() {
        match cx.shared.settings.check(name, value) {
            Err(SettingError::Unknown) => {
                let before = "ERR Unknown option or number of arguments for CONFIG SET - '";
                return w.error(PlanError::quoting(before, words[2 * at], "'").0);
            }
            Err(SettingError::Fixed) => return failed(words[2 * at], "can't set immutable config"),
            _ if pairs[..at].iter().any(|(earlier, _)| earlier == name) => {
                return failed(words[2 * at], "duplicate parameter");
            }
            _ => {}
        }
    }
    for (name, value) in &pairs {
        match cx.shared.settings.check(name, value) {
            Ok(_) => {}
            Err(SettingError::Refused(reason)) => return failed(name.as_bytes(), reason),
            Err(SettingError::OutOfRange(range)) => {
                let (least, most) = range.into_inner();
                return failed(
                    name.as_bytes(),
                    &format!("argument must be between {least} and {most} inclusive"),
                );
            }
            Err(SettingError::NotSize) => return failed(name.as_bytes(), "argument must be a memory value"),
            Err(_) => return failed(name.as_bytes(), "argument couldn't be parsed into an integer"),
        }
    }
    for (name, value) in &pairs {
        if let Ok(name) = cx.shared.settings.set(name, value) {
            cx.shared.apply(name);
            cx.control.setting_changed(name, value);
        }
    }
    w.ok();
}

/// DEBUG, but for DIGEST, COPY-SLOT and MOVE-SLOTS, which are transactions.
pub(super) fn debug(words: &Words<'_>, out: &mut Vec<u8>) {
    let mut w = Writer(out);
    if words[1].eq_ignore_ascii_case(b"sleep") {
        return w.error("ERR DEBUG SLEEP is not supported: it would stop every connection of its event loop");
    }
    help_or_wrong_arity(
        "debug",
        words,
        &[
            "COPY-SLOT <slot> <partition> [<position>]: copies a part of a hash slot to a partition that it is to move to; \
             answers the position of the next, or -1.",
            "DIGEST: 40 hexadecimal digits over the whole committed state.",
            "MOVE-SLOTS <first> <last> <partition>: moves hash slots to a partition; see ordain cluster move.",
        ],
        &mut w,
    );
}

/// SCRIPT DEBUG, SCRIPT KILL and SCRIPT HELP; the others are transactions.
pub(super) fn script(words: &Words<'_>, computations: &Computations, out: &mut Vec<u8>) {
    if let [_, sub, mode] = words
        && sub.eq_ignore_ascii_case(b"debug")
    {
        let mut w = Writer(out);
        return match &*mode.to_ascii_lowercase() {
            b"no" => w.ok(),
            b"yes" | b"sync" => {
                w.error("ERR SCRIPT DEBUG is not supported: there is no debugger for scripts here")
            }
            _ => w.error("ERR Use SCRIPT DEBUG YES/SYNC/NO"),
        };
    }
    scripting(
        "script",
        words,
        &[
            "DEBUG (YES|SYNC|NO): NO is accepted; there is no debugger.",
            "EXISTS <sha1> ...: which scripts are known.",
            "FLUSH [ASYNC|SYNC]: forgets all scripts.",
            "KILL: ends the script that this node is executing, if it only reads.",
            "LOAD <script>: remembers a script without running it.",
        ],
        computations,
        out,
    );
}

/// FUNCTION KILL and FUNCTION HELP; the others are transactions.
pub(super) fn function(words: &Words<'_>, computations: &Computations, out: &mut Vec<u8>) {
    scripting(
        "function",
        words,
        &[
            "DELETE <library>: removes a library and its functions.",
            "DUMP: all libraries as a payload for RESTORE.",
            "FLUSH [ASYNC|SYNC]: removes all libraries.",
            "KILL: ends the function that this node is executing, if it only reads.",
            "LIST [LIBRARYNAME <pattern>] [WITHCODE]: the libraries and their functions.",
            "LOAD [REPLACE] <code>: adds a library.",
            "RESTORE <payload> [FLUSH|APPEND|REPLACE]: adds the libraries of a payload.",
        ],
        computations,
        out,
    );
}

/// KILL and HELP of a container of scripts or functions.
fn scripting(
    container: &str,
    words: &Words<'_>,
    lines: &[&str],
    computations: &Computations,
    out: &mut Vec<u8>,
) {
    let mut w = Writer(out);
    if !words[1].eq_ignore_ascii_case(b"kill") || words.len() > 2 {
        return help_or_wrong_arity(container, words, lines, &mut w);
    }
    let functions = container == "function";
    match computations.end(|procedure| is_function(procedure) == functions) {
        Ending::Nothing => w.error("NOTBUSY No scripts in execution right now."),
        Ending::Soon => w.ok(),
        Ending::Repeated => w.error(UNKILLABLE),
        Ending::OtherKind if functions => w.error("BUSY an EVAL script is running: use SCRIPT KILL"),
        Ending::OtherKind => w.error("BUSY a function is running: use FUNCTION KILL"),
    }
}

const UNKILLABLE: &str = "UNKILLABLE The script is in the log, as it may write or reads on several partitions: every \
                          replica executes it to the same end, which is that of its budget of work at the latest.";

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
