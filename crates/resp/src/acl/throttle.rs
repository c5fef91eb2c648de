//! A throttle of password guesses, by the address that they come from.
//!
//! The first wrong ones of an address cost nothing. After that an attempt is checked only after a wait, be it right or
//! wrong: if only the wrong ones waited, a guesser would hang up as soon as there is no answer at once. A wait doubles
//! up to [`LONGEST`], and at most [`WAITING_MAX`] attempts of an address wait at one time, on however many connections; so
//! an address has about `WAITING_MAX / LONGEST` guesses a second. Who has logged in already notices nothing of it.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ordain_model::Micros;

/// So many wrong passwords of an address cost nothing.
const FREE: u32 = 5;
/// The first wait.
const FIRST: Micros = Micros::from_millis(100);
/// The longest wait.
pub(super) const LONGEST: Micros = Micros::from_millis(2000);
/// The number of attempts of one address that may wait.
pub(super) const WAITING_MAX: usize = 32;
/// After so much time without a wrong password an address begins anew.
const FORGOTTEN: Micros = Micros::from_millis(60_000);
/// The number of addresses that are remembered.
const ADDRESSES_MAX: usize = 4096;

/// The decision on an attempt to log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// It may be checked.
    Now,
    /// It may be checked after so much time.
    After(Micros),
    /// It is not checked: too many of its address wait already.
    Refused,
}

/// An address, or of IPv6 the network that one customer of a provider has.
type Network = IpAddr;

#[derive(Debug, Default)]
struct Record {
    failures: u32,
    last: Micros,
    /// The times at which those that wait are checked.
    waiting: VecDeque<Micros>,
}

/// The addresses that wrong passwords have come from.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    records: BTreeMap<Network, Record>,
}

/// The network of a connection's address; one whose address is not known shares that of all such.
fn network(peer: &str) -> Network {
    match peer.parse::<SocketAddr>().map(|address| address.ip().to_canonical()) {
        Ok(IpAddr::V6(address)) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        Ok(address) => address,
        Err(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

impl Throttle {
    /// Takes note of an attempt to log in.
    pub(super) fn attempt(&mut self, peer: &str, now: Micros) -> Attempt {
        let Some(record) = self.records.get_mut(&network(peer)) else { return Attempt::Now };
        if now.since(record.last) > FORGOTTEN {
            self.records.remove(&network(peer));
            return Attempt::Now;
        }
        if record.failures < FREE {
            return Attempt::Now;
        }
        while record.waiting.pop_front_if(|due| *due <= now).is_some() {}
        if record.waiting.len() >= WAITING_MAX {
            return Attempt::Refused;
        }
        let wait = Micros(FIRST.0 << (record.failures - FREE).min(16)).min(LONGEST);
        record.waiting.push_back(now.plus(wait));
        Attempt::After(wait)
    }

    /// A password was wrong.
    pub(super) fn failed(&mut self, peer: &str, now: Micros) {
        let network = network(peer);
        if self.records.len() >= ADDRESSES_MAX && !self.records.contains_key(&network) {
            let oldest =
                self.records.iter().min_by_key(|(_, record)| record.last).map(|(network, _)| *network);
            oldest.and_then(|network| self.records.remove(&network));
        }
        let record = self.records.entry(network).or_default();
        record.failures = record.failures.saturating_add(1);
        record.last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn an_address_has_a_bounded_number_of_guesses() {
        let mut throttle = Throttle::default();
        let (mut looked_at, mut due) = (0, VecDeque::new());
        // A guesser on as many connections as it likes, for a minute: every wrong one is followed by another at once.
        for now in (0..60 * SECOND).step_by(10_000).map(Micros) {
            while due.pop_front_if(|at| *at <= now).is_some() {
                looked_at += 1;
                throttle.failed("10.0.0.1:5", now);
            }
            for port in 1..20 {
                match throttle.attempt(&format!("10.0.0.1:{port}"), now) {
                    Attempt::Now => {
                        looked_at += 1;
                        throttle.failed("10.0.0.1:5", now);
                    }
                    Attempt::After(wait) => due.push_back(now.plus(wait)),
                    Attempt::Refused => {}
                }
            }
        }
        assert!((500..1500).contains(&looked_at), "{looked_at} guesses in a minute");
        // Another address is not meant.
        assert_eq!(throttle.attempt("10.0.0.2:5", Micros(60 * SECOND)), Attempt::Now);
    }

    #[test]
    fn the_wait_doubles_and_is_forgotten() {
        let mut throttle = Throttle::default();
        let now = Micros(SECOND);
        (0..FREE).for_each(|_| throttle.failed("[2001:db8::1]:1", now));
        // The neighbour in the same network is the same one.
        let mut wait = || {
            let attempt = throttle.attempt("[2001:db8::2]:9", now);
            throttle.failed("[2001:db8::1]:1", now);
            attempt
        };
        for expected in [100, 200, 400, 800, 1600, 2000, 2000] {
            assert_eq!(wait(), Attempt::After(Micros::from_millis(expected)));
        }
        assert_eq!(throttle.attempt("[2001:db8::1]:1", now.plus(FORGOTTEN).plus(Micros(1))), Attempt::Now);
    }

    #[test]
    fn few_addresses_are_remembered() {
        let mut throttle = Throttle::default();
        for i in 0..2 * ADDRESSES_MAX as u32 {
            let address = std::net::Ipv4Addr::from_bits(i);
            throttle.failed(&format!("{address}:1"), Micros(u64::from(i)));
        }
        assert_eq!(throttle.records.len(), ADDRESSES_MAX);
    }
}
