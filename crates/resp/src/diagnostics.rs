//! Measurements of a node's requests: the time of each command, the slow requests, and latency spikes.
//!
//! One [`Diagnostics`] belongs to all connections of a node. Each event loop counts into [`CommandTimes`] of its own, with
//! plain loads and stores of atomics, so that counting costs no synchronization and any thread can read; slow requests and
//! spikes are rare and take a lock.
//!
//! The time of a request runs from when it was read until its reply was made, so it includes waiting for the order and
//! for the log. Redis counts execution alone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ordain_commands::{Action, Command, Flags, SessionCommand, all};
use ordain_model::histogram::{BUCKETS, bucket_of};
use ordain_model::{Datum, Histogram, Micros};

/// Words of a slow request that are kept; one more says how many there were.
const WORDS: usize = 32;
/// Bytes of a word that are kept.
const WORD_BYTES: usize = 128;
/// The number of kinds of errors that are counted apart; the rest, which only scripts can make up, is counted together.
const ERRORS_MAX: usize = 128;
/// Bytes of the first word of an error that are kept.
const CODE_BYTES: usize = 64;
/// Spikes of an event that are kept.
const SPIKES: usize = 160;

/// Locks what no holder leaves half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts of the requests of one command on one event loop.
struct Counts {
    buckets: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
    failed: AtomicU64,
    rejected: AtomicU64,
}

impl Counts {
    fn new() -> Box<Counts> {
        Box::new(Counts {
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            sum_us: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
        })
    }

    fn all(&self) -> impl Iterator<Item = &AtomicU64> {
        self.buckets.iter().chain([&self.sum_us, &self.failed, &self.rejected])
    }
}

/// Adds to a counter of which this thread is the only writer, but for one that sets it to zero.
#[inline]
fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// The times of the commands of one event loop, by command. Only that loop may record.
#[derive(Default)]
pub struct CommandTimes {
    commands: Vec<OnceLock<Box<Counts>>>,
    errors: Mutex<Errors>,
}

/// The number of errors that were answered, by the first word of their texts.
pub type Errors = BTreeMap<Box<[u8]>, u64>;

impl std::fmt::Debug for CommandTimes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommandTimes").finish_non_exhaustive()
    }
}

impl CommandTimes {
    fn new() -> CommandTimes {
        CommandTimes { commands: all().iter().map(|_| OnceLock::new()).collect(), errors: Mutex::default() }
    }

    /// Counts a request of a command, by its place in the command table.
    #[inline]
    pub fn record(&self, command: usize, took: Micros, failed: bool) {
        let Some(counts) = self.commands.get(command) else { return };
        let counts = counts.get_or_init(Counts::new);
        bump(&counts.buckets[bucket_of(took.0)], 1);
        bump(&counts.sum_us, took.0);
        if failed {
            bump(&counts.failed, 1);
        }
    }

    /// Counts a request that was refused before it was executed.
    pub fn reject(&self, command: usize) {
        if let Some(counts) = self.commands.get(command) {
            bump(&counts.get_or_init(Counts::new).rejected, 1);
        }
    }

    /// Counts an error that was answered, by its text.
    #[cold]
    pub fn error(&self, text: &[u8]) {
        let code = text.split(|byte| *byte == b' ').next().unwrap_or_default();
        let code = code.get(..CODE_BYTES).unwrap_or(code);
        let mut errors = lock(&self.errors);
        if let Some(count) = errors.get_mut(code) {
            *count += 1;
        } else {
            let shown = if errors.len() < ERRORS_MAX { code } else { b"OTHER" };
            *errors.entry(shown.into()).or_default() += 1;
        }
    }
}

/// Counts of the requests of a command on all event loops.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandStats {
    /// Times, in microseconds.
    pub times: Histogram,
    /// Answered with an error.
    pub failed: u64,
    /// Refused before they were executed.
    pub rejected: u64,
}

/// A request that took long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowRequest {
    /// The number: one more than that of the one before.
    pub id: u64,
    /// The time at which it was answered, seconds of Unix time.
    pub at_s: u64,
    /// The time that it took.
    pub took: Micros,
    /// The words, shortened as Redis does.
    pub words: Vec<Vec<u8>>,
    /// The client's address and port.
    pub peer: String,
    /// The client's name.
    pub client: Vec<u8>,
}

#[derive(Debug, Default)]
struct SlowLog {
    next: u64,
    entries: VecDeque<SlowRequest>,
}

/// One spike of an event: when, as seconds of Unix time, and for how long, in milliseconds.
pub type Spike = (u64, u64);

/// The spikes of one event of the latency monitor.
#[derive(Clone, Debug, Default)]
pub struct Spikes {
    /// The last of them, oldest first; at most one a second, the longest.
    pub latest: VecDeque<Spike>,
    /// The longest since the last reset, milliseconds.
    pub max_ms: u64,
}

/// The measurements of all connections of a node.
#[derive(Debug, Default)]
pub struct Diagnostics {
    loops: Mutex<Vec<Arc<CommandTimes>>>,
    slow: Mutex<SlowLog>,
    slow_total: AtomicU64,
    events: Mutex<BTreeMap<&'static str, Spikes>>,
}

impl Diagnostics {
    /// The counts of one more event loop.
    pub fn join(&self) -> Arc<CommandTimes> {
        let times = Arc::new(CommandTimes::new());
        lock(&self.loops).push(times.clone());
        times
    }

    /// The counts of a command, by its place in the command table; none if there was no request.
    pub fn command(&self, command: usize) -> Option<CommandStats> {
        let mut stats = CommandStats::default();
        for times in lock(&self.loops).iter() {
            let Some(counts) = times.commands.get(command).and_then(OnceLock::get) else { continue };
            for (bucket, count) in counts.buckets.iter().enumerate() {
                stats.times.add(bucket, count.load(Ordering::Relaxed));
            }
            stats.times.add_sum(counts.sum_us.load(Ordering::Relaxed));
            stats.failed += counts.failed.load(Ordering::Relaxed);
            stats.rejected += counts.rejected.load(Ordering::Relaxed);
        }
        (stats != CommandStats::default()).then_some(stats)
    }

    /// The commands of which there were requests, with what these did, in the order of the command table.
    pub fn commands(&self) -> Vec<(&'static Command, CommandStats)> {
        let stats = |(at, command)| self.command(at).map(|stats| (command, stats));
        all().iter().enumerate().filter_map(stats).collect()
    }

    /// The number of errors of each kind.
    pub fn errors(&self) -> Errors {
        let mut sum = Errors::new();
        for times in lock(&self.loops).iter() {
            for (code, count) in &*lock(&times.errors) {
                *sum.entry(code.clone()).or_default() += count;
            }
        }
        sum
    }

    /// Sets the counts of all commands and errors to zero. A request that is counted meanwhile may be counted twice or
    /// not at all.
    pub fn reset_commands(&self) {
        for times in lock(&self.loops).iter() {
            let counts = times.commands.iter().filter_map(OnceLock::get);
            counts.flat_map(|counts| counts.all()).for_each(|counter| counter.store(0, Ordering::Relaxed));
            lock(&times.errors).clear();
        }
    }

    // ---- slow requests -----------------------------------------------------------------------------------

    /// Notes a slow request; its number is given here. At most `most` are kept.
    pub fn note_slow(&self, request: SlowRequest, most: usize) {
        self.slow_total.fetch_add(1, Ordering::Relaxed);
        let mut slow = lock(&self.slow);
        let id = slow.next;
        slow.next += 1;
        slow.entries.push_front(SlowRequest { id, ..request });
        slow.entries.truncate(most);
    }

    /// The last slow requests, the latest first.
    pub fn slow(&self, most: usize) -> Vec<SlowRequest> {
        lock(&self.slow).entries.iter().take(most).cloned().collect()
    }

    /// The number of slow requests that are kept.
    pub fn slow_len(&self) -> usize {
        lock(&self.slow).entries.len()
    }

    /// The number of slow requests since the start.
    pub fn slow_total(&self) -> u64 {
        self.slow_total.load(Ordering::Relaxed)
    }

    /// Forgets the slow requests; their numbers go on.
    pub fn reset_slow(&self) {
        lock(&self.slow).entries.clear();
    }

    // ---- latency spikes ----------------------------------------------------------------------------------

    /// Notes that an event took so many milliseconds, at this second of Unix time.
    pub fn note_spike(&self, event: &'static str, at_s: u64, took_ms: u64) {
        let mut events = lock(&self.events);
        let spikes = events.entry(event).or_default();
        spikes.max_ms = spikes.max_ms.max(took_ms);
        match spikes.latest.back_mut() {
            Some((at, ms)) if *at == at_s => *ms = (*ms).max(took_ms),
            _ => spikes.latest.push_back((at_s, took_ms)),
        }
        if spikes.latest.len() > SPIKES {
            spikes.latest.pop_front();
        }
    }

    /// All events that had spikes, by name.
    pub fn events(&self) -> BTreeMap<&'static str, Spikes> {
        lock(&self.events).clone()
    }

    /// Forgets the spikes of these events, or of all if none is named; says of how many.
    pub fn reset_events(&self, names: &[&[u8]]) -> usize {
        let mut events = lock(&self.events);
        let before = events.len();
        events.retain(|name, _| {
            !names.is_empty() && !names.iter().any(|n| n.eq_ignore_ascii_case(name.as_bytes()))
        });
        before - events.len()
    }
}

/// Counts a reply if it is an error.
#[inline]
pub(crate) fn note_error(reply: &[u8], times: &CommandTimes) {
    if Datum::is_error(reply)
        && let Datum::Error(text) = Datum::first(reply)
    {
        times.error(text);
    }
}

/// The place of a command in the command table.
#[inline]
pub(crate) fn place_of(command: &'static Command) -> usize {
    let first = all().as_ptr() as usize;
    (std::ptr::from_ref(command) as usize).wrapping_sub(first) / size_of::<Command>()
}

/// The family of a command, by which its times are reported.
pub fn family(command: &Command) -> &'static str {
    match command.action {
        Action::Session(SessionCommand::Exec | SessionCommand::TxnCommit) => "multi",
        Action::Function { .. } => "script",
        _ if matches!(command.name, "eval" | "evalsha" | "eval_ro" | "evalsha_ro") => "script",
        _ if matches!(
            command.name,
            "keys" | "scan" | "dbsize" | "flushall" | "flushdb" | "randomkey" | "swapdb"
        ) =>
        {
            "table"
        }
        Action::Session(_) if command.flags.has(Flags::ADMIN) || is_of_server(command) => "admin",
        Action::Session(_) => "connection",
        Action::Procedure { .. } if command.flags.has(Flags::WRITE) => "write",
        Action::Procedure { .. } => "read",
    }
}

fn is_of_server(command: &Command) -> bool {
    matches!(command.name, "info" | "config" | "debug" | "script" | "function" | "command")
}

/// Shortens the words of a request as Redis does for its slow log: at most 32, each with at most 128 bytes.
fn shorten(words: &[&[u8]], mut each: impl FnMut(&[u8])) {
    let kept = if words.len() > WORDS { WORDS - 1 } else { words.len() };
    for word in &words[..kept] {
        match word.get(..WORD_BYTES) {
            Some(head) if word.len() > WORD_BYTES => {
                let rest = format!("... ({} more bytes)", word.len() - WORD_BYTES);
                each(&[head, rest.as_bytes()].concat());
            }
            _ => each(word),
        }
    }
    if kept < words.len() {
        each(format!("... ({} more arguments)", words.len() - kept).as_bytes());
    }
}

/// Appends the words of a request to a buffer, shortened and without secrets; [`unpack`] gives them back.
#[inline]
pub(crate) fn pack(command: &Command, words: &[&[u8]], out: &mut Vec<u8>) {
    let mut put = |word: &[u8]| {
        out.push(word.len() as u8);
        // A word with what it was shortened by is shorter than 255 bytes.
        out.extend_from_slice(&word[..word.len().min(255)]);
    };
    if is_secret(command) {
        redact(words).into_iter().for_each(|word| put(&word));
    } else {
        shorten(words, put);
    }
}

/// The words that were packed.
pub(crate) fn unpack(mut packed: &[u8]) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    while let Some((len, rest)) = packed.split_first() {
        let (word, rest) = rest.split_at_checked(usize::from(*len)).unwrap_or((rest, &[]));
        words.push(word.to_vec());
        packed = rest;
    }
    words
}

/// Tells whether a command's words may hold a secret.
fn is_secret(command: &Command) -> bool {
    matches!(command.name, "auth" | "hello" | "acl" | "config")
}

/// The words of a request without its secrets, shortened.
fn redact(words: &[&[u8]]) -> Vec<Vec<u8>> {
    const HIDDEN: &[u8] = b"(redacted)";
    let is =
        |at: usize, text: &str| words.get(at).is_some_and(|word| word.eq_ignore_ascii_case(text.as_bytes()));
    let mut shown: Vec<&[u8]> = words.to_vec();
    let mut hide = |places: std::ops::Range<usize>| {
        let end = places.end.min(shown.len());
        shown.get_mut(places.start.min(end)..end).into_iter().flatten().for_each(|word| *word = HIDDEN);
    };
    if is(0, "auth") {
        hide(1..words.len());
    } else if is(0, "hello") {
        (1..words.len()).filter(|at| is(*at, "auth")).for_each(|at| hide(at + 1..at + 3));
    } else if is(0, "acl") && is(1, "setuser") {
        hide(2..words.len());
    } else if is(0, "config") && is(1, "set") {
        let secrets = ["requirepass", "masterauth", "masteruser", "tls-key-file-pass"];
        let is_secret = |at: &usize| secrets.iter().any(|name| is(*at, name));
        (2..words.len()).step_by(2).filter(is_secret).for_each(|at| hide(at + 1..at + 2));
    }
    let mut short = Vec::new();
    shorten(&shown, |word| short.push(word.to_vec()));
    short
}

#[cfg(test)]
mod tests {
    use ordain_commands::lookup;

    use super::*;

    fn packed(words: &[&[u8]]) -> Vec<String> {
        let mut out = Vec::new();
        pack(lookup(words[0]).unwrap(), words, &mut out);
        unpack(&out).into_iter().map(|word| String::from_utf8(word).unwrap()).collect()
    }

    #[test]
    fn words_are_shortened_as_redis_does() {
        let long = [b'x'; 200];
        let shown = packed(&[b"set", b"key", &long]);
        assert_eq!(shown, ["set", "key", &format!("{}... (72 more bytes)", "x".repeat(128))]);
        let exact = packed(&[b"set", b"key", &long[..128]]);
        assert_eq!(exact[2].len(), 128);
        let many: Vec<&[u8]> = [&b"mget"[..]].into_iter().chain([&b"k"[..]; 39]).collect();
        let shown = packed(&many);
        assert_eq!((shown.len(), &*shown[30], &*shown[31]), (32, "k", "... (9 more arguments)"));
        assert_eq!(packed(&many[..32]).len(), 32);
        assert_eq!(packed(&[b"set", b"", b"v"]), ["set", "", "v"]);
    }

    #[test]
    fn secrets_are_not_kept() {
        let of = |line: &str| packed(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>()).join(" ");
        assert_eq!(of("AUTH secret"), "AUTH (redacted)");
        assert_eq!(of("auth user secret"), "auth (redacted) (redacted)");
        assert_eq!(
            of("HELLO 3 AUTH user secret SETNAME me"),
            "HELLO 3 AUTH (redacted) (redacted) SETNAME me"
        );
        assert_eq!(
            of("CONFIG SET timeout 5 requirepass secret maxclients 3"),
            "CONFIG SET timeout 5 requirepass (redacted) maxclients 3"
        );
        assert_eq!(of("CONFIG GET requirepass"), "CONFIG GET requirepass");
        assert_eq!(of("SET auth secret"), "SET auth secret");
    }

    #[test]
    fn commands_are_counted_on_every_loop_and_read_together() {
        let diagnostics = Diagnostics::default();
        let (one, other) = (diagnostics.join(), diagnostics.join());
        let get = place_of(lookup(b"get").unwrap());
        assert_eq!(diagnostics.command(get), None);
        one.record(get, Micros(10), false);
        other.record(get, Micros(1000), true);
        other.reject(get);
        let stats = diagnostics.command(get).unwrap();
        assert_eq!((stats.times.count(), stats.times.sum(), stats.failed, stats.rejected), (2, 1010, 1, 1));
        assert_eq!(
            diagnostics.commands().iter().map(|(command, _)| command.name).collect::<Vec<_>>(),
            ["get"]
        );
        diagnostics.reset_commands();
        assert!(diagnostics.commands().is_empty());
    }

    #[test]
    fn errors_are_counted_by_their_first_words() {
        let diagnostics = Diagnostics::default();
        let (one, other) = (diagnostics.join(), diagnostics.join());
        one.error(b"ERR wrong number of arguments");
        other.error(b"ERR unknown command");
        other.error(b"WRONGTYPE of a key");
        let errors: Vec<_> = diagnostics.errors().into_iter().collect();
        assert_eq!(errors, [(b"ERR"[..].into(), 2), (b"WRONGTYPE"[..].into(), 1)]);
        diagnostics.reset_commands();
        assert!(diagnostics.errors().is_empty());
    }

    #[test]
    fn scripts_cannot_make_up_errors_without_end() {
        let diagnostics = Diagnostics::default();
        let times = diagnostics.join();
        (0..1000).for_each(|n| times.error(format!("E{n}{} text", "x".repeat(99)).as_bytes()));
        let errors = diagnostics.errors();
        assert_eq!((errors.len(), errors.values().sum::<u64>()), (ERRORS_MAX + 1, 1000));
        assert!(errors.keys().all(|code| code.len() <= CODE_BYTES));
    }

    #[test]
    fn slow_requests_are_numbered_and_bounded() {
        let diagnostics = Diagnostics::default();
        let request = |at_s| SlowRequest {
            id: 0,
            at_s,
            took: Micros(5),
            words: Vec::new(),
            peer: String::new(),
            client: Vec::new(),
        };
        (0..10).for_each(|at_s| diagnostics.note_slow(request(at_s), 3));
        let ids: Vec<(u64, u64)> = diagnostics.slow(9).iter().map(|slow| (slow.id, slow.at_s)).collect();
        assert_eq!(ids, [(9, 9), (8, 8), (7, 7)]);
        diagnostics.reset_slow();
        diagnostics.note_slow(request(1), 3);
        assert_eq!(
            (diagnostics.slow_len(), diagnostics.slow(1)[0].id, diagnostics.slow_total()),
            (1, 10, 11)
        );
        diagnostics.note_slow(request(2), 0);
        assert_eq!(diagnostics.slow_len(), 0);
    }

    #[test]
    fn of_the_spikes_of_a_second_the_longest_stays() {
        let diagnostics = Diagnostics::default();
        for (at_s, ms) in [(1, 20), (1, 50), (1, 30), (2, 10)] {
            diagnostics.note_spike("command", at_s, ms);
        }
        diagnostics.note_spike("fsync", 2, 7);
        let events = diagnostics.events();
        assert_eq!(
            (events["command"].latest.clone(), events["command"].max_ms),
            (VecDeque::from([(1, 50), (2, 10)]), 50)
        );
        assert_eq!(diagnostics.reset_events(&[b"FSYNC", b"none"]), 1);
        assert_eq!((diagnostics.reset_events(&[]), diagnostics.events().len()), (1, 0));
    }

    #[test]
    fn every_command_has_a_family_and_its_own_place() {
        for (at, command) in all().iter().enumerate() {
            assert_eq!(place_of(lookup(command.name.as_bytes()).unwrap()), at);
        }
        for (name, expected) in [
            ("get", "read"),
            ("set", "write"),
            ("exec", "multi"),
            ("eval", "script"),
            ("fcall", "script"),
            ("keys", "table"),
            ("flushall", "table"),
            ("config", "admin"),
            ("info", "admin"),
            ("ping", "connection"),
        ] {
            assert_eq!(family(lookup(name.as_bytes()).unwrap()), expected, "{name}");
        }
    }
}
