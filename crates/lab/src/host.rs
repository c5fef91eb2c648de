//! The machine and this process: what a figure has to be read with.

use std::fs::{self, File};
use std::io::Read;
use std::time::Duration;

use serde::Serialize;

/// The machine of a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Host {
    /// The processor's name for itself.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// The machine's memory.
    pub memory_bytes: u64,
}

impl Host {
    /// Looks at the machine. What cannot be found out is empty or 0.
    pub fn look() -> Host {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find(|line| line.starts_with("model name"));
        let cpu = model.and_then(|line| line.split_once(':')).map_or("", |(_, name)| name.trim());
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Host {
            cpu: cpu.to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kilobytes(&meminfo, "MemTotal:"),
        }
    }
}

/// Starts watching the peak of resident memory anew, where the system lets us.
pub fn reset_peak_rss() {
    // Refused by some sandboxes: then the peak is that of the whole process, which is at least no smaller.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// The peak of resident memory since [`reset_peak_rss`]; 0 if it is not known.
pub fn peak_rss_bytes() -> u64 {
    kilobytes(&fs::read_to_string("/proc/self/status").unwrap_or_default(), "VmHWM:")
}

/// Time that the host of a virtual machine has taken from all of its processors since it was started; 0 if it
/// is not known. It counts in hundredths of a second, on most.
pub fn stolen() -> Duration {
    // The file is long where there are many interrupts, and this is in its first line.
    let mut begin = [0; 256];
    let read = File::open("/proc/stat").and_then(|mut file| file.read(&mut begin)).unwrap_or(0);
    let ticks = steal(&String::from_utf8_lossy(&begin[..read]));
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second().max(1) as f64)
}

/// The eighth number of the line `cpu  user nice system idle iowait irq softirq steal …`.
fn steal(stat: &str) -> u64 {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "));
    line.and_then(|rest| rest.split_whitespace().nth(7)?.parse().ok()).unwrap_or(0)
}

/// The value, in bytes, of a line such as `MemTotal:  24689764 kB`.
pub(crate) fn kilobytes(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_cores_and_memory_and_the_process_uses_some() {
        let host = Host::look();
        assert!(host.cores > 0 && host.memory_bytes > 64 << 20, "{host:?}");
        assert!(peak_rss_bytes() > 1 << 20);
        assert_eq!(kilobytes("A: 1 kB\nMem:   7 kB\n", "Mem:"), 7 * 1024);
        assert_eq!(kilobytes("A: x kB", "A:"), 0);
        assert!(stolen() <= stolen());
        assert_eq!(steal("cpu  1 2 3 4 5 6 7 88 9 0\ncpu0 1 2 3 4 5 6 7 44 9 0\n"), 88);
        assert_eq!((steal("cpu  1 2 3\n"), steal("")), (0, 0));
    }
}
