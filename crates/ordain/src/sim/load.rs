//! The flags of `ordain sim` that say how much is asked at once, for how long, and how often something goes wrong.

use std::fmt::Write;

use clap::{Args, value_parser};
use ordain_model::Micros;
use ordain_sim::{Config, FaultPace, Load, Profile};

/// The most waves of requests, and the most faults, in a run of a given time, unless their flags are given.
const WAVES_MAX: u64 = 200;
const FAULTS_MAX: u64 = 400;

/// The profile, the knobs that differ from it, and the length of a run.
#[derive(Clone, Debug, Args)]
pub(super) struct LoadFlags {
    /// How much is asked at once, and how often something goes wrong. `steady`: most requests are answered, in batches of eight
    /// or more. `large`: thousands of fragments in a batch. `quiet`: a single fault. `storm`: faults of
    /// every kind on every node all the time.
    #[arg(long, value_name = "NAME", default_value_t)]
    pub(super) profile: Profile,
    /// Clients; by default as the profile has it, and so is each of the following.
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=10_000))]
    clients: Option<u32>,
    /// Requests that a client without a session has under way; one with a session waits for each answer.
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=1000))]
    pipeline: Option<u16>,
    /// Of a hundred clients those with a session, which ask again until they know the answer.
    #[arg(long, value_name = "PERCENT", value_parser = value_parser!(u32).range(0..=100))]
    sessions: Option<u32>,
    /// Longest time that a client thinks before it asks, in virtual microseconds.
    #[arg(long, value_name = "US")]
    think_us: Option<u64>,
    /// Requests after which all clients rest; 0 for never.
    #[arg(long, value_name = "N")]
    wave: Option<u64>,
    /// Mean time of such a rest, in virtual milliseconds.
    #[arg(long, value_name = "MS", value_parser = value_parser!(u64).range(0..=1_000_000_000))]
    rest_ms: Option<u64>,
    /// Mean time between two faults of the cluster, in virtual milliseconds: one after the other.
    #[arg(long, value_name = "MS", value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    fault_every: Option<u64>,
    /// Mean time that a node is down or stands still, and that the network is cut, in virtual milliseconds; by default as the seed
    /// has it, mostly short.
    #[arg(long, value_name = "MS", value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    outage_ms: Option<u64>,
    /// Percentage of restarted nodes that lose power once more as soon as they catch up with the others.
    #[arg(long, value_name = "PERCENT", value_parser = value_parser!(u32).range(0..=100))]
    relapse: Option<u32>,
    /// Percentage of the faults that come one after the other which hit a node that leads a partition.
    #[arg(long, value_name = "PERCENT", value_parser = value_parser!(u32).range(0..=100))]
    at_leaders: Option<u32>,
    /// Run each seed for so many virtual seconds, in which clients ask and faults happen, in place of a number of transactions.
    /// Clients rest longer and faults are rarer by default, so that a long run has no more than some hundred of each.
    #[arg(long, value_name = "SECONDS", conflicts_with = "txns", value_parser = value_parser!(u64).range(1..=1_000_000))]
    virtual_time: Option<u64>,
    /// Transactions that clients ask for; by default as many as the profile takes, 400 to 1500.
    #[arg(long, value_parser = value_parser!(u64).range(1..))]
    txns: Option<u64>,
    /// Keys that they use: few, so that they are in each other's way; by default 16, with `--profile large` 512.
    #[arg(long, value_parser = value_parser!(u64).range(2..))]
    keys: Option<u64>,
    /// Checkpoints that clients of a mix ask for, to a hundred other requests.
    #[arg(long, value_name = "PERCENT", default_value_t = 2, value_parser = value_parser!(u64).range(0..=50))]
    pub(super) checkpoints: u64,
}

impl LoadFlags {
    /// The number of requests that clients make.
    pub(super) fn txns(&self) -> u64 {
        self.txns.unwrap_or(match self.profile {
            Profile::Large => 1500,
            Profile::Steady => 800,
            Profile::Quiet => 600,
            Profile::Storm => 400,
        })
    }

    /// The number of keys a database that clients use.
    pub(super) fn keys(&self) -> u64 {
        self.keys.unwrap_or(if self.profile == Profile::Large { 512 } else { 16 })
    }

    /// The load of so many partitions: the profile's, but for the flags that are given.
    pub(super) fn load(&self, partitions: u16) -> Load {
        let of = Load::of(self.profile, partitions);
        let time = self.virtual_time.map(|seconds| seconds * 1_000_000);
        let faults = match (self.fault_every, of.faults, time) {
            (Some(millis), ..) => FaultPace::Every { mean_us: millis * 1000 },
            (None, FaultPace::Every { mean_us }, Some(time)) => {
                FaultPace::Every { mean_us: mean_us.max(time / FAULTS_MAX) }
            }
            (None, pace, _) => pace,
        };
        let (wave, rest_us) = match time {
            Some(time) => (
                if of.wave > 0 { of.wave } else { 64 * u64::from(partitions) },
                of.rest_us.max(time / WAVES_MAX),
            ),
            None => (of.wave, of.rest_us),
        };
        Load {
            clients: self.clients.unwrap_or(of.clients),
            pipeline: self.pipeline.map_or(of.pipeline, usize::from),
            session_chance: self.sessions.map_or(of.session_chance, |percent| percent * 10_000),
            think_us_max: self.think_us.unwrap_or(of.think_us_max),
            wave: self.wave.unwrap_or(wave),
            rest_us: self.rest_ms.map_or(rest_us, |millis| millis * 1000),
            faults,
            outage_us: self.outage_ms.map_or(of.outage_us, |millis| millis * 1000),
            relapse_chance: self.relapse.map_or(of.relapse_chance, |percent| percent * 10_000),
            leader_chance: self.at_leaders.map_or(of.leader_chance, |percent| percent * 10_000),
            ..of
        }
    }

    /// The run of a seed on so many partitions by these flags alone.
    pub(super) fn config(&self, partitions: u16, seed: u64) -> Config {
        let of = Config::new(seed);
        let virtual_time = self.virtual_time.map(|seconds| Micros(seconds * 1_000_000));
        let events_max = of.events_max.saturating_mul(1 + self.virtual_time.unwrap_or(0) / 10);
        Config { txns: self.txns(), virtual_time, events_max, load: self.load(partitions), ..of }
    }

    /// The flags as they are given on a command line that reproduces a run.
    pub(super) fn written(&self) -> String {
        let mut text = format!(" --profile {} --keys {}", self.profile, self.keys());
        match self.virtual_time {
            Some(seconds) => _ = write!(text, " --virtual-time {seconds}"),
            None => _ = write!(text, " --txns {}", self.txns()),
        }
        let knobs = [
            ("checkpoints", Some(self.checkpoints).filter(|percent| *percent != 2)),
            ("clients", self.clients.map(u64::from)),
            ("pipeline", self.pipeline.map(u64::from)),
            ("sessions", self.sessions.map(u64::from)),
            ("think-us", self.think_us),
            ("wave", self.wave),
            ("rest-ms", self.rest_ms),
            ("fault-every", self.fault_every),
            ("outage-ms", self.outage_ms),
            ("relapse", self.relapse.map(u64::from)),
            ("at-leaders", self.at_leaders.map(u64::from)),
        ];
        for (name, value) in knobs {
            value.into_iter().for_each(|value| _ = write!(text, " --{name} {value}"));
        }
        text
    }

    /// The load of a run, for its report.
    pub(super) fn to_json(&self, partitions: u16) -> serde_json::Value {
        let load = self.load(partitions);
        serde_json::json!({
            "profile": self.profile.to_string(),
            "clients": load.clients,
            "pipeline": load.pipeline,
            "sessions_percent": f64::from(load.session_chance) / 10_000.0,
            "think_us": load.think_us_max,
            "wave": load.wave,
            "rest_us": load.rest_us,
            "breadth": load.breadth,
            "faults": load.faults.to_string(),
            "outage_us": load.outage_us,
            "relapse_percent": f64::from(load.relapse_chance) / 10_000.0,
            "at_leaders_percent": f64::from(load.leader_chance) / 10_000.0,
        })
    }
}
