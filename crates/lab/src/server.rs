//! Servers on this machine: a node of ours as a child process, and how much any process uses.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::bench::{Ours, scratch};
use crate::host;
use crate::resp::Target;

/// The settings of a node of ours.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The engine, and how.
    pub ours: Ours,
    /// Event loops, each with a shard of the data.
    pub threads: usize,
    /// The durability of an acknowledged write; none: nothing is kept.
    pub durability: Option<String>,
    /// The place of the temporary directory with its data; none: the system's.
    pub place: Option<PathBuf>,
}

/// A node that runs as a child process, until this is dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    target: Target,
    /// Data and logs.
    _directory: tempfile::TempDir,
}

/// Longest time until a node stops.
const STOP: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(10);

impl Server {
    /// Starts `binary serve` on ports of its own choice and waits until it takes connections.
    ///
    /// # Errors
    /// The server does not start, with its last words.
    pub fn start(binary: &Path, launch: &Launch) -> anyhow::Result<Server> {
        let directory = scratch(launch.place.as_deref())?;
        let log = directory.path().join("stderr");
        let mut command = Command::new(binary);
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log", "warn"]);
        command.args(["--engine", launch.ours.engine.name()]);
        for (info, value) in launch.ours.options.iter() {
            command.arg("--option").arg(format!("{}={value}", info.name));
        }
        command.args(["--threads", &launch.threads.to_string()]);
        match &launch.durability {
            Some(durability) => {
                command
                    .args(["--durability", durability])
                    .arg("--data-dir")
                    .arg(directory.path().join("data"));
            }
            None => _ = command.arg("--ephemeral"),
        }
        // A setting of ours beside the flags would make it another server than the one that is reported.
        std::env::vars_os().map(|(name, _)| name).for_each(|name| {
            if name.to_string_lossy().starts_with("ORDAIN_") {
                command.env_remove(name);
            }
        });
        let stderr = File::create(&log).context("cannot write to the server's directory")?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child =
            command.spawn().with_context(|| format!("cannot start {} serve", binary.display()))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).context("reading what the server says")?;
        }
        let Some(address) = ready(&line) else {
            // It has ended or is about to, or is not what we take it for.
            let _ = child.kill();
            let _ = child.wait();
            let output = fs::read_to_string(&log).unwrap_or_default();
            bail!("the server did not start: {}", last_error(&output));
        };
        Ok(Server { child, target: Target::at(address), _directory: directory })
    }

    /// The address of the server.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Stops it and waits until it has drained.
    ///
    /// # Errors
    /// The server does not stop, or ends with an error.
    pub fn stop(mut self) -> anyhow::Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).context("cannot stop the server")?;
        let begun = Instant::now();
        while begun.elapsed() < STOP {
            if let Some(status) = self.child.try_wait().context("waiting for the server to stop")? {
                if status.success() {
                    return Ok(());
                }
                bail!("the server ended with {status}");
            }
            std::thread::sleep(LOOK);
        }
        bail!("the server has not stopped within {} s", STOP.as_secs())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Whether it was stopped before or is given up: nothing may be left behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The error in the output of a program that has ended; the last line, if none looks like one.
pub(crate) fn last_error(output: &str) -> &str {
    let is_error = |line: &&str| line.starts_with("ordain: ") || line.starts_with("error: ");
    output.lines().rfind(is_error).or_else(|| output.lines().last()).unwrap_or("without a message")
}

/// The address in the line by which a node announces that it takes connections.
fn ready(line: &str) -> Option<SocketAddr> {
    let mut words = line.split_whitespace();
    if words.next()? != "ready" {
        return None;
    }
    words.find_map(|word| word.strip_prefix("resp="))?.parse().ok()
}

/// A process of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    id: u32,
}

impl Process {
    /// The process with this number.
    pub const fn new(id: u32) -> Process {
        Process { id }
    }

    /// The number of the process.
    pub const fn id(self) -> u32 {
        self.id
    }

    /// True if the process exists and is visible.
    pub fn is_there(self) -> bool {
        self.path("status").exists()
    }

    fn path(self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.id))
    }

    /// The processor time of the threads so far, by their names; nothing where it is not known.
    pub fn cpu(self) -> BTreeMap<String, Duration> {
        let mut sums: BTreeMap<String, Duration> = BTreeMap::new();
        for task in fs::read_dir(self.path("task")).into_iter().flatten().flatten() {
            let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let name = read("comm");
            let cpu = nanoseconds(&read("schedstat")).or_else(|| ticks(&read("stat")));
            if let Some(cpu) = cpu.filter(|_| !name.trim().is_empty()) {
                *sums.entry(name.trim().to_owned()).or_default() += cpu;
            }
        }
        sums
    }

    /// The peak of the resident memory, bytes; 0 if it is not known.
    pub fn peak_rss_bytes(self) -> u64 {
        host::kilobytes(&fs::read_to_string(self.path("status")).unwrap_or_default(), "VmHWM:")
    }
}

/// The time on a processor in a `schedstat`.
fn nanoseconds(text: &str) -> Option<Duration> {
    Some(Duration::from_nanos(text.split_whitespace().next()?.parse().ok()?))
}

/// The user and system time in a `stat`, where the system counts in ticks only.
fn ticks(text: &str) -> Option<Duration> {
    // The name, in parentheses, may hold anything.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    let ticks = next()? + next()?;
    let per_second = rustix::param::clock_ticks_per_second();
    Some(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

/// Processor time between two looks, by the threads' names.
pub fn cpu_since(
    before: &BTreeMap<String, Duration>,
    after: BTreeMap<String, Duration>,
) -> BTreeMap<String, Duration> {
    let spent = |name: &str, now: Duration| now.saturating_sub(before.get(name).copied().unwrap_or_default());
    after
        .into_iter()
        .map(|(name, now)| (name.clone(), spent(&name, now)))
        .filter(|(_, t)| !t.is_zero())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_tells_where() {
        let line = "ready resp=127.0.0.1:41234 admin=127.0.0.1:9121 engine=calvin node=0\n";
        assert_eq!(ready(line), Some(SocketAddr::from(([127, 0, 0, 1], 41_234))));
        for line in ["", "resp=127.0.0.1:1", "ready", "ready resp=x"] {
            assert_eq!(ready(line), None, "{line}");
        }
    }

    #[test]
    fn the_error_is_found_among_what_was_said() {
        let usage = "error: no such flag\n\nFor more information, try '--help'.\n";
        assert_eq!(last_error(usage), "error: no such flag");
        assert_eq!(last_error("WARN slow\nordain: no room\n"), "ordain: no room");
        assert_eq!((last_error("WARN slow\n"), last_error("")), ("WARN slow", "without a message"));
    }

    #[test]
    fn a_program_that_is_no_server_is_an_error() {
        let launch = Launch {
            ours: Ours::new(ordain_engines::registry::Engine::default()),
            threads: 1,
            durability: None,
            place: None,
        };
        for (program, part) in [("/nonexistent/ordain", "cannot start"), ("/bin/false", "without a message")]
        {
            let error = format!("{:#}", Server::start(Path::new(program), &launch).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn the_threads_of_this_process_use_time_by_name() {
        let process = Process::new(std::process::id());
        assert!(process.is_there() && process.peak_rss_bytes() > 1 << 20);
        let before = process.cpu();
        let spent = std::thread::Builder::new().name("spins".into()).spawn(move || {
            while crate::meter::thread_cpu() < Duration::from_millis(30) {
                std::hint::spin_loop();
            }
            cpu_since(&before, process.cpu())
        });
        let spent = spent.unwrap().join().unwrap();
        assert!(spent.get("spins").is_some_and(|cpu| *cpu >= Duration::from_millis(20)), "{spent:?}");
        assert!(Process::new(u32::MAX).cpu().is_empty() && !Process::new(u32::MAX).is_there());
    }

    #[test]
    fn times_are_read_in_either_form() {
        assert_eq!(nanoseconds("1500 7 2\n"), Some(Duration::from_nanos(1500)));
        assert_eq!(nanoseconds(""), None);
        let stat = "7 (a ) b) S 1 1 1 0 -1 0 0 0 0 0 30 20 0 0 20 0";
        let hertz = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(ticks(stat), Some(Duration::from_secs_f64(50.0 / hertz)));
        assert_eq!(ticks("7 (x) S"), None);
    }
}
