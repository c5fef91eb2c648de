//! What connections have the node write into its log: each kind a few times a second at most, so that a client
//! cannot fill the disk by being refused.

use ordain_resp::{Foreign, Notice};

/// The number of lines of one kind that are written between two ticks.
const LINES: u64 = 3;

/// Notices of one event loop since the last tick.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    foreign: Lines,
    logins: Lines,
}

/// The number of notices of a kind since the last tick.
#[derive(Debug, Default)]
struct Lines(u64);

impl Lines {
    /// Counts one more; whether it is written.
    fn admit(&mut self) -> bool {
        self.0 += 1;
        self.0 <= LINES
    }

    /// Begins anew; answers how many were not written.
    fn take(&mut self) -> u64 {
        std::mem::take(&mut self.0).saturating_sub(LINES)
    }
}

impl Notices {
    /// Writes a notice, unless there were many like it.
    pub(crate) fn note(&mut self, notice: Notice<'_>) {
        match notice {
            Notice::Foreign { peer, foreign } if self.foreign.admit() => {
                tracing::warn!(peer, "{}", text(foreign))
            }
            Notice::LogInFailed { peer, user } if self.logins.admit() => {
                let user = user[..user.len().min(64)].escape_ascii();
                tracing::warn!(peer, %user, "a login failed: wrong password, or no such user, or it is switched off");
            }
            Notice::Foreign { .. } | Notice::LogInFailed { .. } => {}
        }
    }

    /// A second has passed: says how many notices were left out.
    pub(crate) fn tick(&mut self) {
        match self.logins.take() {
            0 => {}
            more => tracing::warn!(more, "more logins failed"),
        }
        match self.foreign.take() {
            0 => {}
            more => tracing::warn!(more, "more connections were closed because they spoke another protocol"),
        }
    }
}

fn text(foreign: Foreign) -> &'static str {
    match foreign {
        Foreign::Http => {
            "possible attack: HTTP on the port for Redis clients (POST or Host: as a command). A web page or another \
             program may be trying to reach this node through a browser or a server. The connection was closed \
             and nothing after that line was executed"
        }
        Foreign::Tls => {
            "TLS on a port that does not offer it: the connection was closed. Has the client the wrong port, or does \
             the node lack --tls-port?"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_notices_is_a_few_lines() {
        let mut lines = Lines::default();
        assert_eq!((0..1000).filter(|_| lines.admit()).count(), LINES as usize);
        assert_eq!(lines.take(), 1000 - LINES);
        assert!(lines.admit());
        assert_eq!(lines.take(), 0);
    }
}
