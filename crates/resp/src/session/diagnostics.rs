//! Times of requests: noted as they are answered, for SLOWLOG, LATENCY and INFO.

use std::fmt::Write as _;

use ordain_commands::{Command, Flags, lookup};
use ordain_model::{Histogram, Micros, Writer};

use super::dispatch::help_or_wrong_arity;
use super::replies::{Done, Sequence};
use super::{Mode, Session, Words};
use crate::diagnostics::{CommandStats, SlowRequest, Spikes, pack, place_of, unpack};
use crate::shared::{Context, parse_int};

/// How many slow requests SLOWLOG GET shows by default.
const SHOWN: usize = 10;
/// The text in the place of words that were not kept.
const NOT_KEPT: &[u8] = b"... (words not kept: too many requests under way)";

impl Session {
    /// Notes a request that was handled: its command if it waits for its answer, else its time.
    #[inline]
    pub(super) fn note_taken(&mut self, words: &Words<'_>, cx: &Context<'_>) {
        let Some(number) = self.command.filter(|_| std::mem::take(&mut self.is_known)) else { return };
        let command = number.command();
        let thresholds = cx.shared.settings.thresholds();
        let place = place_of(command);
        let pack_words = (thresholds.slow_us >= 0).then_some(|out: &mut Vec<u8>| pack(command, words, out));
        if self.replies.describe(place, cx.shared.elapsed.0 as u32, pack_words) {
            return;
        }
        // A part of a block is executed by EXEC.
        if matches!(self.mode, Mode::Multi(_)) && command.name != "multi" {
            return;
        }
        cx.shared.observed.times.record(place, Micros(0), self.replies.last_failed());
        if thresholds.slow_us == 0 {
            let mut packed = Vec::new();
            pack(command, words, &mut packed);
            self.note_slow(command, Micros(0), unpack(&packed), cx);
        }
    }

    /// Notes the time of a request that waited and is answered.
    #[inline]
    pub(super) fn note_done(&self, sequence: Sequence, done: &Done, cx: &Context<'_>) {
        let took = Micros(u64::from((cx.shared.elapsed.0 as u32).wrapping_sub(done.since)));
        cx.shared.observed.times.record(done.command, took, done.failed);
        let thresholds = cx.shared.settings.thresholds();
        let took_us = i64::try_from(took.0).unwrap_or(i64::MAX);
        let is_slow = thresholds.slow_us >= 0 && took_us >= thresholds.slow_us;
        let is_spike = thresholds.spike_ms > 0 && took.0 / 1000 >= thresholds.spike_ms;
        if is_slow || is_spike {
            self.note_long(sequence, done, took, (is_slow, is_spike), cx);
        }
    }

    #[cold]
    fn note_long(
        &self,
        sequence: Sequence,
        done: &Done,
        took: Micros,
        (is_slow, is_spike): (bool, bool),
        cx: &Context<'_>,
    ) {
        let Some(command) = ordain_commands::all().get(done.command) else { return };
        if is_spike {
            let event = if command.flags.has(Flags::FAST) { "fast-command" } else { "command" };
            cx.shared.observed.diagnostics.note_spike(event, cx.now.0 / 1_000_000, took.0 / 1000);
        }
        if is_slow {
            let mut words = unpack(self.replies.words_of(sequence));
            if words.is_empty() {
                words = vec![command.name.into(), NOT_KEPT.to_vec()];
            }
            self.note_slow(command, took, words, cx);
        }
    }

    fn note_slow(&self, command: &Command, took: Micros, words: Vec<Vec<u8>>, cx: &Context<'_>) {
        // Redis notes the commands of a block one by one, and not EXEC; here a block is one transaction.
        if command.flags.has(Flags::SKIP_SLOWLOG) && command.name != "exec" {
            return;
        }
        let request = SlowRequest {
            id: 0,
            at_s: cx.now.0 / 1_000_000,
            took,
            words,
            peer: self.peer.to_string(),
            client: self.name.to_vec(),
        };
        cx.shared.observed.diagnostics.note_slow(request, cx.shared.settings.thresholds().slow_len);
    }
}

/// SLOWLOG.
pub(super) fn slowlog(words: &Words<'_>, cx: &Context<'_>, out: &mut Vec<u8>) {
    let mut w = Writer(out);
    let diagnostics = &cx.shared.observed.diagnostics;
    let sub = words[1].to_ascii_lowercase();
    let mut show = |most: usize| {
        let slow = diagnostics.slow(most);
        w.array(slow.len());
        for request in slow {
            w.array(6);
            w.int(request.id as i64);
            w.int(request.at_s as i64);
            w.int(request.took.0 as i64);
            w.array(request.words.len());
            request.words.iter().for_each(|word| w.bulk(word));
            w.bulk(request.peer.as_bytes());
            w.bulk(&request.client);
        }
    };
    match (&*sub, &words[2..]) {
        (b"get", []) => show(SHOWN),
        (b"get", [count]) => match parse_int(count) {
            Some(-1) => show(usize::MAX),
            Some(count) if count >= 0 => show(count as usize),
            _ => w.error("ERR count should be greater than or equal to -1"),
        },
        (b"len", []) => w.int(diagnostics.slow_len() as i64),
        (b"reset", []) => {
            diagnostics.reset_slow();
            w.ok();
        }
        _ => help_or_wrong_arity(
            "slowlog",
            words,
            &[
                "GET [<count>]: the last slow requests of this node (10, or -1 for all), with the time from when each was \
                 read until its reply was made.",
                "LEN: how many are kept.",
                "RESET: forgets them.",
            ],
            &mut w,
        ),
    }
}

/// LATENCY.
pub(super) fn latency(words: &Words<'_>, cx: &Context<'_>, out: &mut Vec<u8>) {
    let mut w = Writer(out);
    let diagnostics = &cx.shared.observed.diagnostics;
    let sub = words[1].to_ascii_lowercase();
    match (&*sub, &words[2..]) {
        (b"latest", []) => {
            let events = diagnostics.events();
            w.array(events.len());
            for (name, spikes) in events {
                let (at_s, ms) = spikes.latest.back().copied().unwrap_or_default();
                w.array(4);
                w.bulk(name.as_bytes());
                w.int(at_s as i64);
                w.int(ms as i64);
                w.int(spikes.max_ms as i64);
            }
        }
        (b"history", [event]) => {
            let spikes = spikes_of(event, cx).map(|(_, spikes)| spikes).unwrap_or_default();
            w.array(spikes.latest.len());
            for (at_s, ms) in spikes.latest {
                w.array(2);
                w.int(at_s as i64);
                w.int(ms as i64);
            }
        }
        (b"reset", events) => w.int(diagnostics.reset_events(events) as i64),
        (b"graph", [event]) => match spikes_of(event, cx) {
            Some((name, spikes)) => {
                w.verbatim(*b"txt", graph(name, &spikes, cx.now.0 / 1_000_000).as_bytes())
            }
            None => w.error([b"ERR No samples available for event '", *event, b"'"].concat()),
        },
        (b"doctor", []) => w.verbatim(*b"txt", doctor(cx).as_bytes()),
        (b"histogram", names) => {
            let known = |name: &&[u8]| {
                let command = lookup(name)?;
                Some((command, diagnostics.command(place_of(command))?))
            };
            let mut all: Vec<(&Command, CommandStats)> = match names {
                [] => diagnostics.commands(),
                names => names.iter().filter_map(known).collect(),
            };
            all.retain(|(_, stats)| stats.times.count() > 0);
            w.map(all.len());
            for (command, stats) in all {
                w.bulk(command.name.as_bytes());
                histogram(&stats.times, &mut w);
            }
        }
        _ => help_or_wrong_arity(
            "latency",
            words,
            &[
                "DOCTOR: what was seen, in words.",
                "GRAPH <event>: the latest spikes of an event.",
                "HISTOGRAM [<command> ...]: how long commands took, as cumulative counts by microseconds.",
                "HISTORY <event>: times and lengths of the latest spikes of an event.",
                "LATEST: the last spike of every event.",
                "RESET [<event> ...]: forgets the spikes of all or of some events.",
            ],
            &mut w,
        ),
    }
}

fn spikes_of(event: &[u8], cx: &Context<'_>) -> Option<(&'static str, Spikes)> {
    let mut events = cx.shared.observed.diagnostics.events().into_iter();
    events.find(|(name, _)| name.as_bytes() == event)
}

/// A command's times, as Redis shows them: counts of what took at most a power of two of microseconds.
fn histogram(times: &Histogram, w: &mut Writer<'_>) {
    let mut counts: Vec<(u64, u64)> = Vec::new();
    for power in 0..=27 {
        let bound = 1_u64 << power;
        // Times are whole microseconds, rounded down.
        let count = if power == 27 { times.count() } else { times.below(bound) };
        if count > counts.last().map_or(0, |(_, before)| *before) {
            counts.push((bound, count));
        }
        if count == times.count() {
            break;
        }
    }
    w.map(2);
    w.bulk(b"calls");
    w.int(times.count() as i64);
    w.bulk(b"histogram_usec");
    w.map(counts.len());
    for (bound, count) in counts {
        w.int(bound as i64);
        w.int(count as i64);
    }
}

/// The spikes of an event as columns, the latest to the right.
fn graph(name: &str, spikes: &Spikes, now_s: u64) -> String {
    const ROWS: u64 = 4;
    const COLUMNS: usize = 80;
    let columns: Vec<(u64, u64)> = spikes.latest.iter().rev().take(COLUMNS).rev().copied().collect();
    let high = columns.iter().map(|(_, ms)| *ms).max().unwrap_or_default();
    let low = columns.iter().map(|(_, ms)| *ms).min().unwrap_or_default();
    let mut text = format!("{name} - high {high} ms, low {low} ms (all time high {} ms)\n", spikes.max_ms);
    text.push_str(&"-".repeat(COLUMNS));
    text.push('\n');
    for row in (0..ROWS).rev() {
        for (_, ms) in &columns {
            let height = (ms - low) * (ROWS - 1) / (high - low).max(1);
            text.push(match height.cmp(&row) {
                std::cmp::Ordering::Greater => '|',
                std::cmp::Ordering::Equal => '#',
                std::cmp::Ordering::Less => ' ',
            });
        }
        text.push('\n');
    }
    let ages: Vec<Vec<char>> = columns.iter().map(|(at_s, _)| age(now_s.saturating_sub(*at_s))).collect();
    text.push('\n');
    for line in 0..ages.iter().map(Vec::len).max().unwrap_or_default() {
        text.extend(ages.iter().map(|age| age.get(line).copied().unwrap_or(' ')));
        text.push('\n');
    }
    text
}

/// An age in the largest unit of which it is at least one.
fn age(seconds: u64) -> Vec<char> {
    let text = match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    };
    text.chars().collect()
}

/// The text of LATENCY DOCTOR: the spikes, and what to do about them.
fn doctor(cx: &Context<'_>) -> String {
    let events = cx.shared.observed.diagnostics.events();
    let Some(threshold) = cx.shared.settings.spike_ms() else {
        return "Latency monitoring is off. CONFIG SET latency-monitor-threshold <milliseconds> turns it on; the metrics of \
                the admin address have the distribution of all latencies in any case.\n"
            .to_owned();
    };
    if events.is_empty() {
        return format!("Nothing has taken {threshold} milliseconds or more since the last LATENCY RESET.\n");
    }
    let mut text = String::new();
    for (number, (name, spikes)) in (1..).zip(&events) {
        let count = spikes.latest.len() as u64;
        let mean = spikes.latest.iter().map(|(_, ms)| ms).sum::<u64>() / count.max(1);
        let (first, last) =
            (spikes.latest.front().map_or(0, |s| s.0), spikes.latest.back().map_or(0, |s| s.0));
        let period = if count > 1 { (last - first) / (count - 1) } else { 0 };
        // Writing into a string cannot fail.
        let _ = writeln!(
            text,
            "{number}. {name}: {count} latency spikes (average {mean} ms, one every {period} s, the longest {} ms). {}",
            spikes.max_ms,
            advice(name)
        );
    }
    text
}

fn advice(event: &str) -> &'static str {
    match event {
        "command" | "fast-command" => {
            "SLOWLOG GET names the requests; their time includes waiting for the order, the log and other partitions."
        }
        "fsync" => "The disk is slow: see ordain_disk_sync_seconds, and what else writes to it.",
        "loop-turn" => {
            "Something held up an event loop: a script, a command over the whole table, a large value. SLOWLOG GET may name it."
        }
        _ => "See the metrics of the admin address.",
    }
}

/// The section `latencystats` of INFO.
pub(super) fn latencystats(cx: &Context<'_>, put: &mut dyn FnMut(&str, &dyn std::fmt::Display)) {
    for (command, stats) in cx.shared.observed.diagnostics.commands() {
        if stats.times.count() > 0 {
            let at = |share: f64| stats.times.percentile(share) as f64;
            let value = format!("p50={:.3},p99={:.3},p99.9={:.3}", at(0.5), at(0.99), at(0.999));
            put(&format!("latency_percentiles_usec_{}", command.name), &value);
        }
    }
}

/// The section `commandstats` of INFO.
pub(super) fn commandstats(cx: &Context<'_>, put: &mut dyn FnMut(&str, &dyn std::fmt::Display)) {
    for (command, CommandStats { times, failed, rejected }) in cx.shared.observed.diagnostics.commands() {
        let (calls, usec) = (times.count(), times.sum());
        let mean = usec as f64 / calls.max(1) as f64;
        let value = format!(
            "calls={calls},usec={usec},usec_per_call={mean:.2},rejected_calls={rejected},failed_calls={failed}"
        );
        put(&format!("cmdstat_{}", command.name), &value);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn a_graph_has_a_column_for_each_spike() {
        let spikes = Spikes { latest: VecDeque::from([(100, 10), (160, 40), (3700, 20)]), max_ms: 50 };
        let text = graph("command", &spikes, 3705);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "command - high 40 ms, low 10 ms (all time high 50 ms)");
        assert_eq!((lines[1].len(), &lines[2..6]), (80, &[" # ", " | ", " |#", "#||"][..]));
        assert_eq!(&lines[6..], ["", "155", "h9s", " m "]);
    }
}
