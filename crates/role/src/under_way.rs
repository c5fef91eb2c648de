//! Where a role says what it is executing, so that it can be read after the process has died of it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A place outside the process's own memory that holds the number of the transaction which a shard is executing.
///
/// Writing costs one store without ordering. The default is nowhere: then nothing is written. What stands there is
/// never read by a role, so it has no influence on any result.
#[derive(Clone, Copy, Default)]
pub struct UnderWay {
    own: Option<&'static AtomicU64>,
    /// For the work that is given away.
    work: Option<&'static AtomicU64>,
}

impl UnderWay {
    /// Such a place, and one for the [work](crate::Work) that is given away; 0 there means that nothing is executed.
    pub const fn at(own: &'static AtomicU64, work: &'static AtomicU64) -> UnderWay {
        UnderWay { own: Some(own), work: Some(work) }
    }

    /// Where the work says what it executes that was given away: it goes on beside its role.
    #[must_use]
    pub const fn of_work(self) -> UnderWay {
        UnderWay { own: self.work, work: None }
    }

    /// Computes something for the transaction with this number, which is executed for as long as that takes.
    pub fn during<T>(self, number: u64, compute: impl FnOnce() -> T) -> T {
        self.begin(number);
        let computed = compute();
        self.end();
        computed
    }

    /// The execution of the transaction with this number begins or goes on.
    #[inline]
    pub fn begin(self, number: u64) {
        if let Some(place) = self.own {
            place.store(number, Ordering::Relaxed);
        }
    }

    /// Nothing is executed any more.
    #[inline]
    pub fn end(self) {
        self.begin(0);
    }
}

impl fmt::Debug for UnderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.own.is_some() { "UnderWay" } else { "UnderWay(nowhere)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_says_what_it_executes_beside_its_role() {
        static OWN: AtomicU64 = AtomicU64::new(0);
        static WORK: AtomicU64 = AtomicU64::new(0);
        let there = || (OWN.load(Ordering::Relaxed), WORK.load(Ordering::Relaxed));
        let under_way = UnderWay::at(&OWN, &WORK);
        under_way.begin(3);
        assert_eq!(under_way.of_work().during(7, there), (3, 7));
        assert_eq!(there(), (3, 0));
        under_way.end();
        assert_eq!(there(), (0, 0));
        UnderWay::default().of_work().begin(1);
    }
}
