//! The state that all connections of one event loop share, and their requests to the node around them.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use ordain_gateway::{Gateway, Ticket};
use ordain_model::options::parse_size;
use ordain_model::{Computations, Db, Micros, plan};

use crate::acl::Access;
use crate::diagnostics::{CommandTimes, Diagnostics};
use crate::memory::{CLIENTS_MAX, Memory};
use crate::session::{ClientId, Cost, Session};

/// The context of a call of a session.
pub struct Context<'a> {
    /// The gateway that takes transactions.
    pub gateway: &'a mut Gateway,
    /// The state that the connections of this event loop share.
    pub shared: &'a mut Shared,
    /// The node.
    pub control: &'a mut dyn Control,
    /// Wall-clock time.
    pub now: Micros,
}

impl fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("now", &self.now).finish_non_exhaustive()
    }
}

/// The requests of a session to the node around it.
pub trait Control {
    /// Takes a request over all connections of the node. Its answer, a [`ordain_model::Datum`], comes to
    /// [`Session::finished`] under the ticket, sooner or later.
    fn request(&mut self, ticket: Ticket, request: ControlRequest);

    /// CONFIG SET changed a setting of this event loop; the other loops get it too
    /// ([`Settings::set`]).
    fn setting_changed(&mut self, name: &'static str, value: &str);

    /// CONFIG RESETSTAT.
    fn reset_statistics(&mut self);

    /// Takes note of something that the operator should read in the node's log.
    fn notice(&mut self, notice: Notice<'_>);

    /// The users have changed: every session of the node is to note them soon ([`Session::note_users`]).
    fn users_changed(&mut self);

    /// Fills random bytes for secrets.
    ///
    /// # Errors
    /// The system has none.
    fn random(&mut self, bytes: &mut [u8]) -> Result<(), String>;
}

/// Something that the operator should read in the node's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice<'a> {
    /// A connection was closed because its other end speaks another protocol.
    Foreign {
        /// The address.
        peer: &'a str,
        /// The protocol.
        foreign: Foreign,
    },
    /// A login failed.
    LogInFailed {
        /// The address that it came from.
        peer: &'a str,
        /// The user that it named.
        user: &'a [u8],
    },
}

/// A protocol that is not spoken on the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// HTTP: a browser can be made to send it by any page.
    Http,
    /// TLS, where none is offered.
    Tls,
}

/// A request to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlRequest {
    /// A bulk: [`Session::describe`] of the connections that match, one a line.
    ListClients(ClientFilter),
    /// Closes the connections that match ([`Session::kill`]); an integer: how many did.
    KillClients(ClientFilter),
    /// Anything, after so much time.
    Wait(Micros),
    /// Has the users of the node's ACL file in the place of those that there are ([`UsersFileError::reply`]).
    ///
    /// [`UsersFileError::reply`]: crate::UsersFileError::reply
    LoadUsers,
    /// Replaces the node's ACL file, whole or not at all: the same answer.
    SaveUsers,
}

/// A filter of connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientFilter {
    /// Only these, unless empty.
    pub ids: Vec<ClientId>,
    /// Not this one.
    pub except: Option<ClientId>,
    /// Only the one with this address of its own.
    pub peer: Option<Vec<u8>>,
    /// Only those that came in at this address.
    pub local: Option<Vec<u8>>,
    /// Only those of this user.
    pub user: Option<Vec<u8>>,
    /// Matches nothing: a kind of connection that this server has none of.
    pub nothing: bool,
}

impl ClientFilter {
    /// Tells whether a connection matches.
    pub fn matches(&self, session: &Session) -> bool {
        let is = |wanted: &Option<Vec<u8>>, have: &str| wanted.as_ref().is_none_or(|w| w == have.as_bytes());
        !self.nothing
            && (self.ids.is_empty() || self.ids.contains(&session.client()))
            && self.except != Some(session.client())
            && self.user.as_ref().is_none_or(|user| user == session.user().name())
            && is(&self.peer, session.peer())
            && is(&self.local, session.local())
    }
}

/// The bounds of what one connection may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests that wait for their answers; no more input is taken beyond.
    pub pending_max: usize,
    /// Bytes of replies that the client has not taken; no more input is taken beyond.
    pub output_pause: usize,
    /// Bytes of replies that the client has not taken; the connection is closed beyond.
    pub output_max: usize,
    /// Bytes of commands in a MULTI block, and of records in an interactive transaction.
    pub transaction_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            pending_max: 1024,
            output_pause: 256 << 10,
            output_max: 256 << 20,
            transaction_bytes_max: 64 << 20,
        }
    }
}

/// Parameters that CONFIG shows.
#[derive(Clone, Debug)]
pub struct Settings {
    parameters: BTreeMap<&'static str, Parameter>,
    thresholds: Thresholds,
}

/// The parameters that every request is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thresholds {
    /// Requests that take so many microseconds or more are noted as slow; below 0: none.
    pub(crate) slow_us: i64,
    /// The number of slow requests that are kept.
    pub(crate) slow_len: usize,
    /// Requests that take so many milliseconds or more are latency spikes; 0: none.
    pub(crate) spike_ms: u64,
}

#[derive(Clone, Debug)]
struct Parameter {
    value: String,
    takes: Takes,
}

/// The values that CONFIG SET may give a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Takes {
    /// Only the value that it has.
    Same,
    /// Nothing, not even the value that it has.
    Nothing,
    /// Only the value that it has; else this is the error.
    SameOr(&'static str),
    /// A number in this range.
    Number(RangeInclusive<i64>),
    /// A number of bytes, in the units that [`parse_size`] reads.
    Size,
}

/// The reason why CONFIG SET refuses a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingError {
    /// There is no such parameter.
    Unknown,
    /// It cannot change while the server runs.
    Fixed,
    /// It cannot change to that: why.
    Refused(&'static str),
    /// It takes a number.
    NotNumber,
    /// It takes a number in this range.
    OutOfRange(RangeInclusive<i64>),
    /// It takes a number of bytes.
    NotSize,
}

/// Which requests are slow at first, microseconds: as in Redis.
const SLOW_US: i64 = 10_000;
/// The number of slow requests that are kept at first.
const SLOW_LEN: i64 = 128;

/// Parameters of Redis that no running server changes: refused as such although there are none here.
const IMMUTABLE: &[&str] = &[
    "aclfile",
    "always-show-logo",
    "aof_rewrite_cpulist",
    "appenddirname",
    "appendfilename",
    "bgsave_cpulist",
    "bio_cpulist",
    "cluster-config-file",
    "cluster-port",
    "daemonize",
    "disable-thp",
    "enable-debug-command",
    "enable-module-command",
    "enable-protected-configs",
    "io-threads-do-reads",
    "logfile",
    "pidfile",
    "rdbchecksum",
    "replicaof",
    "server_cpulist",
    "set-proc-title",
    "slaveof",
    "socket-mark-id",
    "supervised",
    "syslog-enabled",
    "syslog-facility",
    "syslog-ident",
    "tcp-backlog",
    "unixsocket",
    "unixsocketperm",
];

const NO_EVENTS: &str = "this server sends no keyspace notifications: it takes only the empty value";

impl Default for Settings {
    /// The parameters that clients of Redis ask for, with the values that describe this server.
    fn default() -> Settings {
        let thresholds = Thresholds { slow_us: SLOW_US, slow_len: SLOW_LEN as usize, spike_ms: 0 };
        let mut settings = Settings { parameters: BTreeMap::new(), thresholds };
        let fixed = [
            ("appendfsync", "everysec"),
            ("appendonly", "no"),
            ("bind", "127.0.0.1"),
            ("client-output-buffer-limit", "normal 268435456 0 0 slave 0 0 0 pubsub 0 0 0"),
            ("cluster-enabled", "no"),
            ("databases", "16"),
            ("dir", ""),
            ("io-threads", "1"),
            ("maxmemory-policy", "noeviction"),
            ("notify-keyspace-events", ""),
            ("port", "6379"),
            ("proto-max-bulk-len", "536870912"),
            ("requirepass", ""),
            ("save", ""),
            ("tcp-keepalive", "300"),
        ];
        fixed.iter().for_each(|(name, value)| settings.fix(name, *value));
        settings.offer("maxclients", 10_000, 1..=i64::from(u32::MAX));
        settings.offer_size("maxmemory", 0);
        settings.offer_size("maxmemory-clients", CLIENTS_MAX);
        settings.offer("timeout", 0, 0..=i64::from(i32::MAX));
        settings.offer("latency-monitor-threshold", 0, 0..=i64::MAX);
        settings.offer("slowlog-log-slower-than", SLOW_US, -1..=i64::MAX);
        settings.offer("slowlog-max-len", SLOW_LEN, 0..=i64::MAX);
        for name in ["databases", "cluster-enabled", "io-threads"] {
            settings.take(name, Takes::Nothing);
        }
        settings.take("notify-keyspace-events", Takes::SameOr(NO_EVENTS));
        settings.take("dir", Takes::SameOr("can't set protected config"));
        settings
    }
}

impl Settings {
    /// Shows a parameter that clients cannot change.
    pub fn fix(&mut self, name: &'static str, value: impl Into<String>) {
        let takes = self.parameters.get(name).map_or(Takes::Same, |had| had.takes.clone());
        self.parameters.insert(name, Parameter { value: value.into(), takes });
    }

    /// Offers a number that clients can change within a range; the node reads it with [`Settings::number`].
    pub fn offer(&mut self, name: &'static str, value: i64, range: RangeInclusive<i64>) {
        let parameter = Parameter { value: value.to_string(), takes: Takes::Number(range) };
        self.parameters.insert(name, parameter);
    }

    /// Offers a number of bytes that clients can change, in the units that [`parse_size`] reads.
    pub fn offer_size(&mut self, name: &'static str, bytes: u64) {
        self.parameters.insert(name, Parameter { value: bytes.to_string(), takes: Takes::Size });
    }

    fn take(&mut self, name: &str, takes: Takes) {
        if let Some(parameter) = self.parameters.get_mut(name) {
            parameter.takes = takes;
        }
    }

    pub(crate) const fn thresholds(&self) -> Thresholds {
        self.thresholds
    }

    /// The least duration of a latency spike, milliseconds; none if spikes are not recorded.
    pub fn spike_ms(&self) -> Option<u64> {
        Some(self.thresholds.spike_ms).filter(|ms| *ms > 0)
    }

    fn signed(&self, name: &str) -> i64 {
        self.parameters.get(name).and_then(|p| p.value.parse().ok()).unwrap_or_default()
    }

    /// A parameter that is a number; 0 if it is none.
    pub fn number(&self, name: &str) -> u64 {
        self.parameters.get(name).and_then(|p| p.value.parse().ok()).unwrap_or(0)
    }

    /// Tells whether a parameter could take a value; gives its name as it is kept. Every parameter takes the value
    /// that it has, but for those that no Redis server lets clients set.
    ///
    /// # Errors
    /// [`SettingError`].
    pub fn check(&self, name: &str, value: &str) -> Result<&'static str, SettingError> {
        let Some((name, parameter)) = self.parameters.get_key_value(name) else {
            return Err(if IMMUTABLE.contains(&name) { SettingError::Fixed } else { SettingError::Unknown });
        };
        match &parameter.takes {
            Takes::Nothing => Err(SettingError::Fixed),
            _ if parameter.value == value => Ok(name),
            Takes::Same => Err(SettingError::Fixed),
            Takes::SameOr(reason) => Err(SettingError::Refused(reason)),
            Takes::Size => parse_size(value).map(|_| *name).ok_or(SettingError::NotSize),
            Takes::Number(range) => match (value.parse::<i64>(), parse_int(value.as_bytes())) {
                (Ok(number), Some(_)) if range.contains(&number) => Ok(name),
                (_, None) => Err(SettingError::NotNumber),
                _ => Err(SettingError::OutOfRange(range.clone())),
            },
        }
    }

    /// Sets a parameter.
    ///
    /// # Errors
    /// [`SettingError`]; nothing has changed then.
    pub fn set(&mut self, name: &str, value: &str) -> Result<&'static str, SettingError> {
        let name = self.check(name, value)?;
        if let Some(parameter) = self.parameters.get_mut(name) {
            parameter.value = match parse_size(value) {
                Some(bytes) if parameter.takes == Takes::Size => bytes.to_string(),
                _ => value.to_string(),
            };
        }
        self.thresholds = Thresholds {
            slow_us: self.signed("slowlog-log-slower-than"),
            slow_len: self.number("slowlog-max-len") as usize,
            spike_ms: self.number("latency-monitor-threshold"),
        };
        Ok(name)
    }

    /// The parameters and their values, in order of name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.parameters.iter().map(|(name, parameter)| (*name, &*parameter.value))
    }
}

/// The contents of INFO. The node brings them up to date from time to time; counters are sums over all
/// event loops.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct NodeInfo {
    /// Forty hexadecimal digits, new at every start.
    pub run_id: String,
    pub engine: String,
    pub node: u16,
    pub os: String,
    pub process: u32,
    pub port: u16,
    pub config_file: String,
    /// The time at which the node started, wall-clock.
    pub started: Micros,
    pub threads: usize,
    pub clients: u64,
    pub memory_bytes: u64,
    pub memory_peak_bytes: u64,
    pub memory_resident_bytes: u64,
    /// The memory that all connections hold, bytes.
    pub memory_clients_bytes: u64,
    pub connections_total: u64,
    /// Reads that found a record, and those that did not.
    pub hits_total: u64,
    pub misses_total: u64,
    /// Records removed because their time had come.
    pub expired_total: u64,
    pub connections_refused_total: u64,
    pub commands_total: u64,
    pub commands_per_second: u64,
    pub input_bytes_total: u64,
    pub output_bytes_total: u64,
    pub epoch: u64,
    pub cpu_system_us: u64,
    pub cpu_user_us: u64,
    /// The time at which the newest checkpoint became complete, seconds since the Unix epoch; 0 if there is none.
    pub checkpoint_s: u64,
    /// One is being made.
    pub checkpoint_is_made: bool,
    /// The last one that was begun came to nothing.
    pub checkpoint_failed: bool,
    /// The other members of the partition's replication group, by the host and port that clients connect to.
    pub members: Vec<(String, u16)>,
    /// The number of them that hold a write, at least, once it is answered.
    pub members_that_hold: u16,
    /// Numbers of the engine's own, by name.
    pub engine_gauges: Vec<(String, String)>,
    /// The section `regions`, by field; empty where partitions have no storage nodes.
    pub regions: Vec<(String, String)>,
}

impl NodeInfo {
    /// The counters since they were as in `base`, and everything else as it is.
    pub fn since(&self, base: &NodeInfo) -> NodeInfo {
        NodeInfo {
            connections_total: self.connections_total.saturating_sub(base.connections_total),
            connections_refused_total: self
                .connections_refused_total
                .saturating_sub(base.connections_refused_total),
            commands_total: self.commands_total.saturating_sub(base.commands_total),
            input_bytes_total: self.input_bytes_total.saturating_sub(base.input_bytes_total),
            output_bytes_total: self.output_bytes_total.saturating_sub(base.output_bytes_total),
            hits_total: self.hits_total.saturating_sub(base.hits_total),
            misses_total: self.misses_total.saturating_sub(base.misses_total),
            expired_total: self.expired_total.saturating_sub(base.expired_total),
            ..self.clone()
        }
    }

    /// The reply of LASTSAVE: without a checkpoint, when the node was started, as in Redis.
    pub fn last_save_s(&self) -> u64 {
        if self.checkpoint_s > 0 { self.checkpoint_s } else { self.started.0 / 1_000_000 }
    }
}

/// The counts of the sessions of one event loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Commands handled.
    pub commands_total: u64,
    /// Bytes of requests.
    pub input_bytes_total: u64,
    /// Connections closed because they did not take their replies.
    pub output_limit_total: u64,
    /// Connections closed because they spoke another protocol.
    pub cut_off_total: u64,
}

/// The counters of the requests of one event loop.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The node's.
    pub diagnostics: Arc<Diagnostics>,
    /// The event loop's own.
    pub times: Arc<CommandTimes>,
}

impl Observed {
    /// For one more event loop of a node.
    pub fn by(diagnostics: Arc<Diagnostics>) -> Observed {
        let times = diagnostics.join();
        Observed { diagnostics, times }
    }
}

impl Default for Observed {
    fn default() -> Observed {
        Observed::by(Arc::default())
    }
}

/// The state that all connections of one event loop share.
#[derive(Default)]
pub struct Shared {
    /// Parameters.
    pub settings: Settings,
    /// The users and the refusals of the whole node.
    pub access: Arc<Access>,
    /// The bounds of one connection.
    pub limits: Limits,
    /// The contents of INFO.
    pub node: NodeInfo,
    /// The counts of the loop.
    pub counters: Counters,
    /// The measurements of requests.
    pub observed: Observed,
    /// Time since the node started, as of the event that is handled: what requests are timed by.
    pub elapsed: Micros,
    /// The memory that the connections of all event loops hold, and the limit.
    pub memory: Arc<Memory>,
    /// The long computations that are running on the node: what SCRIPT KILL and FUNCTION KILL end.
    pub computations: Computations,
    pub(crate) scratch: Scratch,
}

impl Shared {
    /// Has a setting that was just changed take effect on what all event loops share.
    pub fn apply(&self, setting: &str) {
        match setting {
            "maxmemory" => self.memory.set_limit(self.settings.number(setting)),
            "maxmemory-clients" => self.memory.set_clients_max(self.settings.number(setting)),
            _ => {}
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Buffers used again from command to command.
#[derive(Default)]
pub(crate) struct Scratch {
    /// The cost of the command at hand.
    pub(crate) cost: Cost,
    pub(crate) datum: Vec<u8>,
    pub(crate) args: Vec<u8>,
    pub(crate) plans: plan::Plans,
}

/// The error of Redis for a word that is no integer.
pub(crate) const NOT_INTEGER: &str = "ERR value is not an integer or out of range";

/// Reads a database number that a client can select.
pub(crate) fn parse_db(text: &[u8]) -> Result<Db, &'static str> {
    let n: i64 = parse_int(text).ok_or(NOT_INTEGER)?;
    match u8::try_from(n) {
        Ok(db) if db < Db::COUNT => Ok(Db(db)),
        _ => Err("ERR DB index is out of range"),
    }
}

/// Reads a decimal number as Redis does: no plus, no spaces, no leading zeros.
pub(crate) fn parse_int(text: &[u8]) -> Option<i64> {
    let n: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    (digits[0] != b'+' && (digits == b"0" && text[0] != b'-' || digits[0] != b'0')).then_some(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_change_only_where_they_can() {
        let mut settings = Settings::default();
        assert_eq!(settings.set("timeout", "30"), Ok("timeout"));
        assert_eq!(settings.number("timeout"), 30);
        assert_eq!(settings.set("timeout", "soon"), Err(SettingError::NotNumber));
        assert_eq!(settings.set("timeout", "-1"), Err(SettingError::OutOfRange(0..=i64::from(i32::MAX))));
        assert_eq!(
            settings.set("slowlog-log-slower-than", "-2"),
            Err(SettingError::OutOfRange(-1..=i64::MAX))
        );
        assert_eq!(settings.set("slowlog-log-slower-than", "-1"), Ok("slowlog-log-slower-than"));
        assert_eq!(settings.set("latency-monitor-threshold", "25"), Ok("latency-monitor-threshold"));
        assert_eq!((settings.thresholds().slow_us, settings.spike_ms()), (-1, Some(25)));
        assert_eq!(settings.set("maxclients", "0"), Err(SettingError::OutOfRange(1..=i64::from(u32::MAX))));
        assert_eq!(settings.number("maxclients"), 10_000);
        assert_eq!(settings.set("maxmemory", "200mb"), Ok("maxmemory"));
        assert_eq!(settings.number("maxmemory"), 200 << 20);
        assert_eq!(settings.set("maxmemory", "much"), Err(SettingError::NotSize));
        assert_eq!(settings.set("databases", "16"), Err(SettingError::Fixed));
        assert_eq!(settings.set("daemonize", "no"), Err(SettingError::Fixed));
        assert_eq!(settings.set("save", ""), Ok("save"));
        assert_eq!(settings.set("notify-keyspace-events", ""), Ok("notify-keyspace-events"));
        assert_eq!(settings.set("notify-keyspace-events", "KEA"), Err(SettingError::Refused(NO_EVENTS)));
        assert_eq!(settings.set("no-such", "1"), Err(SettingError::Unknown));
    }

    #[test]
    fn integers_are_read_as_redis_reads_them() {
        for (text, n) in [("0", Some(0)), ("-5", Some(-5)), ("15", Some(15)), ("+1", None), ("01", None)] {
            assert_eq!(parse_int(text.as_bytes()), n, "{text}");
        }
        for text in ["", "-", "-0", "-01", "1 ", "x", "9223372036854775808"] {
            assert_eq!(parse_int(text.as_bytes()), None, "{text}");
        }
    }
}
