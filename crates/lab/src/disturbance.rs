//! Use of the machine by others while something is measured, from two readings of `/proc`.
//!
//! A throughput of a machine that others use is one of a smaller machine, and two of them have no ratio. So every run
//! tells how many cores' worth of processor time other processes used meanwhile, and how much of it the host of a
//! virtual machine took. More than [`MOST`] of either, and the run is *disturbed*: it keeps its figures, marked, and
//! gives no verdict. A run whose machine was not watched is *unknown*, and gives none either.
//!
//! Two sums tell what others used. That of the other processes' own times is exact to a tick for each, and misses
//! processes that are hidden from this one. That of the whole machine, less this process and its children, misses
//! nothing, but the system takes it in samples: it counts for what it shows beyond their error. The larger of both
//! holds. Threads of the system's own kernel are nobody's: they write the log and the messages of the run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use serde::Serialize;

/// Cores' worth of processor time that others may use, or the host may take, before a run is disturbed.
pub const MOST: f64 = 0.1;

/// The shortest time, seconds, over which [`MOST`] is more than the ticks in which the system counts.
const SHORTEST: f64 = 0.5;

/// The state of the machine during a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The run had the machine to itself.
    Free,
    /// The machine was not watched, or for too short a time.
    #[default]
    Unknown,
    /// Other processes or the host used a part of it.
    Disturbed,
}

/// The use of the machine by others during a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Disturbance {
    /// The state that follows.
    pub state: State,
    /// Cores' worth of processor time that other processes used, if that is known.
    pub others_cores: Option<f64>,
    /// Cores' worth of processor time that the host took, if that is known.
    pub stolen_cores: Option<f64>,
    /// The reason for which the state is not [`State::Free`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Disturbance {
    /// A machine of which nothing is known.
    pub fn unknown(why: impl Into<String>) -> Disturbance {
        Disturbance { why: Some(why.into()), ..Disturbance::default() }
    }

    /// True if the run had the machine to itself.
    pub fn is_free(&self) -> bool {
        self.state == State::Free
    }

    /// The state with its reason, for a table.
    pub fn text(&self) -> String {
        let state = match self.state {
            State::Free => "free",
            State::Unknown => "unknown",
            State::Disturbed => "disturbed",
        };
        self.why.as_ref().map_or_else(|| state.to_owned(), |why| format!("{state}: {why}"))
    }

    /// The disturbance of several runs together: the worst of them.
    pub fn worst<'a>(all: impl IntoIterator<Item = &'a Disturbance>) -> Disturbance {
        let worst = all.into_iter().max_by_key(|disturbance| disturbance.state);
        worst.cloned().unwrap_or_default()
    }

    /// The disturbance between two readings of a machine.
    fn between(begin: &Reading, end: &Reading, seconds: f64, ticks_per_s: f64) -> Disturbance {
        let cores = |ticks: u64| ticks as f64 / ticks_per_s / seconds;
        let more = |of: fn(&Reading) -> u64| of(end).saturating_sub(of(begin));
        let (own, kernel) = (more(|reading| reading.own), more(|reading| reading.kernel));
        // Each sample is a tick of one processor, and finds it at work or not.
        let samples = seconds * ticks_per_s * end.processors.max(1) as f64;
        let error = (3.0 * 0.5 * samples.sqrt()).ceil() as u64;
        let beside = more(|reading| reading.busy).saturating_sub(own + kernel + error);
        let others = cores(beside.max(more(|reading| reading.others)));
        let stolen = cores(more(|reading| reading.stolen));
        let mut why = Vec::new();
        if others > MOST {
            why.push(format!("others used {others:.2} cores"));
        }
        if stolen > MOST {
            why.push(format!("the host took {stolen:.2} cores"));
        }
        let (state, why) = if seconds < SHORTEST {
            (State::Unknown, Some(format!("measured for less than {SHORTEST} s")))
        } else if why.is_empty() {
            (State::Free, None)
        } else {
            (State::Disturbed, Some(why.join(", ")))
        };
        Disturbance { state, others_cores: Some(others), stolen_cores: Some(stolen), why }
    }
}

/// Processor time used by a moment, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reading {
    /// Of all processes and threads of the machine, by samples.
    busy: u64,
    /// Taken by the host.
    stolen: u64,
    /// Of this process and its children, and of the server that it measures.
    own: u64,
    /// Of the kernel's own threads.
    kernel: u64,
    /// Of all other processes.
    others: u64,
    processors: usize,
}

/// A process in its `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    id: u32,
    parent: u32,
    /// Its own time, and that of the children that it has waited for, in ticks.
    ticks: u64,
}

/// The parent of all threads of the kernel.
const KERNEL: u32 = 2;

impl Process {
    /// Reads `id (name) state parent … utime stime cutime cstime …`.
    fn of(stat: &str) -> Option<Process> {
        // The name may hold anything.
        let (id, rest) = stat.split_once(' ')?;
        let fields: Vec<&str> = rest.rsplit_once(')')?.1.split_whitespace().collect();
        let times = fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok());
        let ticks = times.sum::<Option<u64>>()?;
        Some(Process { id: id.parse().ok()?, parent: fields[1].parse().ok()?, ticks })
    }
}

impl Reading {
    /// Reads `/proc/stat` and the `stat` of all processes, of which some are a run's; none if there is no such file.
    fn of(stat: &str, processes: &[Process], roots: &[u32]) -> Option<Reading> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let fields = line.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>().ok()?;
        // user nice system idle iowait irq softirq steal
        let [user, nice, system, .., stolen] = fields.get(..8)? else { return None };
        let is_processor = |line: &&str| line.starts_with("cpu") && !line.starts_with("cpu ");
        let mut reading = Reading {
            busy: user + nice + system,
            stolen: *stolen,
            processors: stat.lines().filter(is_processor).count(),
            ..Reading::default()
        };
        let own = family(processes, roots);
        for Process { id, parent, ticks } in processes {
            let sum = if own.contains(id) {
                &mut reading.own
            } else if *id == KERNEL || *parent == KERNEL {
                &mut reading.kernel
            } else {
                &mut reading.others
            };
            *sum += ticks;
        }
        Some(reading)
    }

    fn take(roots: &[u32]) -> Option<Reading> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let entries = fs::read_dir("/proc").ok()?.flatten();
        let is_process =
            |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
        let stats = entries.filter(is_process).map(|entry| fs::read_to_string(entry.path().join("stat")));
        // One that has ended meanwhile has left its time to its parent.
        let processes: Vec<Process> = stats.flatten().filter_map(|stat| Process::of(&stat)).collect();
        Reading::of(&stat, &processes, roots)
    }
}

/// The processes with these numbers, and all that descend from them.
fn family(processes: &[Process], roots: &[u32]) -> BTreeSet<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for process in processes {
        children.entry(process.parent).or_default().push(process.id);
    }
    let (mut found, mut next) = (BTreeSet::new(), roots.to_vec());
    while let Some(id) = next.pop() {
        if found.insert(id) {
            next.extend(children.get(&id).into_iter().flatten());
        }
    }
    found
}

/// Watches the machine from a moment on.
#[derive(Debug)]
pub struct Watch {
    begun: Instant,
    first: Option<Reading>,
    roots: Vec<u32>,
}

impl Watch {
    /// Begins to watch; `server` is the number of a process that is a part of the run and no child of this one.
    pub fn begin(server: Option<u32>) -> Watch {
        let roots: Vec<u32> = [std::process::id()].into_iter().chain(server).collect();
        let first = Reading::take(&roots);
        Watch { begun: Instant::now(), first, roots }
    }

    /// Ends, and tells what others have used since the beginning.
    pub fn end(&self) -> Disturbance {
        let length: Duration = self.begun.elapsed();
        let ticks_per_s = rustix::param::clock_ticks_per_second().max(1) as f64;
        match self.first.zip(Reading::take(&self.roots)) {
            Some((first, last)) => Disturbance::between(&first, &last, length.as_secs_f64(), ticks_per_s),
            None => Disturbance::unknown("/proc tells no processor times"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(id: u32, parent: u32, ticks: u64) -> Process {
        Process { id, parent, ticks }
    }

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let stat = "17 (a) b) S) R 5 17 17 0 -1 4194304 101 0 0 0 20 7 2 1 20 0 1 0 2577567 3133440 380";
        assert_eq!(Process::of(stat), Some(process(17, 5, 30)));
        assert_eq!((Process::of(""), Process::of("17 (a) R 5 1 2")), (None, None));
    }

    const STAT: &str =
        "cpu  100 20 30 400 9 5 6 7 0 0\ncpu0 50 10 15 1 1 1 1 1\ncpu1 50 10 15 1 1 1 1 1\nintr 5\n";

    #[test]
    fn a_run_is_its_process_its_children_and_the_server_it_measures() {
        let processes = [
            process(1, 0, 3),
            process(2, 0, 4),
            process(9, 2, 5),
            process(50, 1, 40),
            process(51, 50, 10),
            process(52, 51, 10),
            process(70, 1, 6),
            process(80, 1, 7),
        ];
        let reading = Reading::of(STAT, &processes, &[50, 80]).unwrap();
        let expected = Reading { busy: 150, stolen: 7, own: 67, kernel: 9, others: 9, processors: 2 };
        assert_eq!(reading, expected);
    }

    #[test]
    fn without_the_line_of_all_processors_nothing_is_known() {
        for stat in ["", "cpu  1 2 3\n", "cpu  a b c d e f g h\n", "cpu0 1 2 3 4 5 6 7 8\n"] {
            assert_eq!(Reading::of(stat, &[], &[]), None, "{stat}");
        }
    }

    /// What was found in ten seconds of two processors, of which the run used one and a half.
    fn after(stolen: u64, others: u64, hidden: u64) -> Disturbance {
        let begin = Reading { processors: 2, ..Reading::default() };
        let busy = 1_500 + 20 + others + hidden;
        let end = Reading { busy, stolen, own: 1_500, kernel: 20, others, processors: 2 };
        Disturbance::between(&begin, &end, 10.0, 100.0)
    }

    #[test]
    fn others_and_the_host_may_take_a_tenth_of_a_core_and_no_more() {
        // A tenth of a core is 100 ticks in ten seconds; the samples may err by 68.
        for (stolen, others, hidden, state, why) in [
            (0, 0, 0, State::Free, None),
            (100, 100, 0, State::Free, None),
            (101, 0, 0, State::Disturbed, Some("the host took 0.10 cores")),
            (0, 101, 0, State::Disturbed, Some("others used 0.10 cores")),
            (0, 0, 168, State::Free, None),
            (0, 0, 169, State::Disturbed, Some("others used 0.10 cores")),
            (300, 800, 0, State::Disturbed, Some("others used 0.80 cores, the host took 0.30 cores")),
        ] {
            let found = after(stolen, others, hidden);
            assert_eq!((found.state, found.why.as_deref()), (state, why), "{stolen} {others} {hidden}");
        }
        assert_eq!(after(0, 800, 0).text(), "disturbed: others used 0.80 cores");
    }

    #[test]
    fn what_is_too_short_for_the_systems_ticks_is_unknown() {
        let end = Reading { others: 30, ..Reading::default() };
        let found = Disturbance::between(&Reading::default(), &end, 0.3, 100.0);
        assert_eq!((found.state, found.others_cores), (State::Unknown, Some(1.0)));
        assert!(!found.is_free() && found.text().starts_with("unknown: measured for less"), "{found:?}");
    }

    #[test]
    fn of_several_runs_the_worst_is_told() {
        let all = [after(0, 0, 0), Disturbance::unknown("x"), after(0, 500, 0)];
        assert_eq!(Disturbance::worst(&all).state, State::Disturbed);
        assert_eq!(Disturbance::worst(&all[..2]).state, State::Unknown);
        assert_eq!(Disturbance::worst(&all[..1]).state, State::Free);
        assert_eq!(Disturbance::worst([]).state, State::Unknown);
    }

    #[test]
    fn this_machine_tells_the_times_of_this_process_and_of_others() {
        let roots = [std::process::id()];
        let before = Reading::take(&roots).unwrap();
        let from = crate::meter::process_cpu();
        while crate::meter::process_cpu() < from + Duration::from_millis(60) {
            std::hint::spin_loop();
        }
        let after = Reading::take(&roots).unwrap();
        assert!(after.own >= before.own + 5, "{before:?} {after:?}");
        assert!(after.processors > 0 && after.busy > before.busy && after.others > 0, "{after:?}");
        // Whoever is not this process is another.
        let nobody = Reading::take(&[]).unwrap();
        assert!(nobody.own == 0 && nobody.others > after.own, "{nobody:?}");
        let found = Watch::begin(None).end();
        assert!(found.stolen_cores.is_some() && found.state == State::Unknown, "{found:?}");
    }
}
