//! The clients of a population that have no transaction under way, by their classes ([`Workload::classes`]).
//!
//! Clients of a class ask for transactions of that class alone, so one whose transactions take long holds up no other. A class with a
//! share waits until the others have asked for more: else a short transaction of few would be outnumbered by long ones of many, and the
//! share would be another one for each delay.
//!
//! [`Workload::classes`]: ordain_workload::Workload::classes

use ordain_workload::Class;

/// Clients without a transaction under way.
#[derive(Debug)]
pub(super) struct Free {
    /// In the order of the workload's classes; one pool if it has none.
    pools: Vec<Pool>,
    /// True: the pools are classes.
    is_divided: bool,
    /// Transactions that all have asked for.
    asked: u64,
}

/// The clients of a class.
#[derive(Debug)]
struct Pool {
    /// The number of the first client of the next class.
    end: u32,
    free: Vec<u32>,
    at_most: f64,
    /// Transactions that they have asked for.
    asked: u64,
}

impl Free {
    /// So many clients, all of one kind.
    pub fn alike(clients: usize) -> Free {
        let all = Class { clients: 1.0, at_most: 1.0 };
        Free { is_divided: false, ..Free::divided(clients, &[all]) }
    }

    /// So many clients, divided into classes with a client each at least; alike if there are too few of them, or no classes.
    pub fn of(clients: usize, classes: &[Class]) -> Free {
        if classes.is_empty() || clients < classes.len() {
            return Free::alike(clients);
        }
        Free::divided(clients, classes)
    }

    fn divided(clients: usize, classes: &[Class]) -> Free {
        let mut pools: Vec<Pool> = Vec::new();
        let (mut first, mut shares) = (0, 0.0);
        for (number, class) in classes.iter().enumerate() {
            shares += class.clients;
            // Whoever comes later gets a client too.
            let most = clients - (classes.len() - 1 - number);
            let end = ((clients as f64 * shares).round() as usize).clamp((first + 1).min(most), most);
            let end = if number + 1 == classes.len() { clients } else { end };
            let free = (first as u32..end as u32).collect();
            pools.push(Pool { end: end as u32, free, at_most: class.at_most, asked: 0 });
            first = end;
        }
        Free { pools, is_divided: true, asked: 0 }
    }

    /// The place of the first class of which a client may ask for a transaction now.
    pub fn ready(&self) -> Option<usize> {
        let may_ask = |pool: &Pool| {
            let next = (self.asked + 1) as f64;
            !pool.free.is_empty() && (pool.at_most >= 1.0 || (pool.asked as f64) < pool.at_most * next)
        };
        self.pools.iter().position(may_ask)
    }

    /// The class at a place, if there are classes.
    pub fn class(&self, place: usize) -> Option<usize> {
        self.is_divided.then_some(place)
    }

    /// Takes a client, who asks for a transaction.
    pub fn take(&mut self, place: usize) -> Option<u32> {
        let pool = self.pools.get_mut(place)?;
        let client = pool.free.pop()?;
        pool.asked += 1;
        self.asked += 1;
        Some(client)
    }

    /// A client has been answered.
    pub fn give_back(&mut self, client: u32) {
        if let Some(pool) = self.pools.iter_mut().find(|pool| client < pool.end) {
            pool.free.push(client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(free: &Free) -> Vec<usize> {
        free.pools.iter().map(|pool| pool.free.len()).collect()
    }

    #[test]
    fn clients_are_divided_and_no_class_has_none() {
        let two = |clients| [Class { clients: 1.0 - clients, at_most: 1.0 }, Class { clients, at_most: 0.5 }];
        assert_eq!(sizes(&Free::of(17, &two(32.0 / 34.0))), [1, 16]);
        assert_eq!(sizes(&Free::of(8, &two(0.25))), [6, 2]);
        assert_eq!(sizes(&Free::of(2, &two(1.0))), [1, 1]);
        assert_eq!(sizes(&Free::of(3, &two(0.0))), [2, 1]);
        for few in [Free::of(1, &two(0.5)), Free::of(5, &[]), Free::of(0, &two(0.5))] {
            assert!(few.pools.len() == 1 && few.class(0).is_none(), "{few:?}");
        }
    }

    #[test]
    fn a_class_with_a_share_waits_for_the_others_and_holds_up_none() {
        let classes = [Class { clients: 0.5, at_most: 1.0 }, Class { clients: 0.5, at_most: 0.1 }];
        let mut free = Free::of(40, &classes);
        let mut asked = [0u64; 2];
        // Those of the second class are never answered.
        for _ in 0..100 {
            while let Some(place) = free.ready() {
                assert_eq!(free.class(place), Some(place));
                let client = free.take(place).unwrap();
                asked[place] += 1;
                assert_eq!(client >= 20, place == 1);
            }
            (0..20).for_each(|client| free.give_back(client));
        }
        assert_eq!(asked, [2_000, 20], "all of them are under way, and the others go on");
        // While they are answered at once, they are held to their share.
        let mut free = Free::of(40, &classes);
        let mut asked = [0u64; 2];
        for _ in 0..100 {
            while let Some(place) = free.ready() {
                let client = free.take(place).unwrap();
                asked[place] += 1;
                if place == 1 {
                    free.give_back(client);
                }
            }
            (0..20).for_each(|client| free.give_back(client));
        }
        assert_eq!(asked[0], 2_000);
        assert!((215..=225).contains(&asked[1]), "{asked:?}");
    }
}
