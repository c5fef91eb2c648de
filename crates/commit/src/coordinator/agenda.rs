//! The agenda of a coordinator: when something is to be done about each of its transactions.

use std::collections::{BTreeMap, BTreeSet};

use ordain_model::Micros;

/// At most one time for each transaction, by its number.
#[derive(Debug, Default)]
pub struct Agenda {
    by_time: BTreeSet<(Micros, u64)>,
    times: BTreeMap<u64, Micros>,
}

impl Agenda {
    /// Sets the time of a transaction, in place of the one it has.
    pub fn set(&mut self, number: u64, at: Micros) {
        if let Some(before) = self.times.insert(number, at) {
            self.by_time.remove(&(before, number));
        }
        self.by_time.insert((at, number));
    }

    /// Nothing is to be done about a transaction.
    pub fn cancel(&mut self, number: u64) {
        if let Some(at) = self.times.remove(&number) {
            self.by_time.remove(&(at, number));
        }
    }

    /// The earliest time.
    pub fn first(&self) -> Option<Micros> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Takes out a transaction whose time has come.
    pub fn pop(&mut self, now: Micros) -> Option<u64> {
        let (at, number) = *self.by_time.first()?;
        (at <= now).then(|| self.cancel(number))?;
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_has_one_time_and_comes_when_it_is_there() {
        let mut agenda = Agenda::default();
        agenda.set(1, Micros(30));
        agenda.set(2, Micros(20));
        agenda.set(1, Micros(10));
        assert_eq!((agenda.first(), agenda.pop(Micros(9))), (Some(Micros(10)), None));
        assert_eq!((agenda.pop(Micros(25)), agenda.pop(Micros(25))), (Some(1), Some(2)));
        agenda.set(3, Micros(1));
        agenda.cancel(3);
        assert_eq!((agenda.first(), agenda.pop(Micros(u64::MAX))), (None, None));
    }
}
