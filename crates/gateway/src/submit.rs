//! Submitting: a request is planned and put into the chunk where it belongs.
//!
//! In a cluster a transaction is sequenced at its *home*: the partition that keeps its session if it has one and may
//! write, so that a retry meets the first attempt; or else the only partition that takes part in it, so that nobody
//! else hears of it; or else the gateway's own. A transaction that only reads may go to a snapshot instead.

use ordain_model::args::ArgsBuilder;
use ordain_model::{Call, Chunk, PartitionId, PlanError, Reads, RequestNo, Token, View};
use ordain_role::Bug;

use crate::pending::{Asker, Place, Waiter};
use crate::reconnaissance::Dependent;
use crate::{Gateway, Path, Ticket};

/// A chunk is closed at this many transactions or bytes, and another begun.
pub(crate) const MAX_CHUNK: usize = 1 << 13;
const MAX_CHUNK_BYTES: usize = 16 << 20;

/// The place of a transaction that was planned, if it has one yet.
pub(crate) enum Admitted {
    /// The transaction has a place in a chunk, and takes this path.
    Placed(Place, Path),
    /// Others of its connection have to be answered first. These are its arguments.
    NotYet(Vec<u8>),
}

impl Gateway {
    /// Adds a request to the chunk being built. A session's request numbers must not exceed [`RequestNo::LARGEST`].
    ///
    /// # Errors
    /// The arguments were refused; nothing was submitted and no answer will come.
    #[inline]
    pub fn submit(
        &mut self,
        ticket: Ticket,
        call: Call,
        write_args: impl FnOnce(&mut ArgsBuilder<'_>),
    ) -> Result<(), PlanError> {
        self.submit_to(ticket, call, View::Since(Token::NOTHING), write_args).map(drop)
    }

    /// Adds a request that is to see what a view says, if it only reads; answers which path it takes.
    ///
    /// # Errors
    /// As [`Gateway::submit`].
    #[inline]
    pub fn submit_to(
        &mut self,
        ticket: Ticket,
        mut call: Call,
        view: View,
        write_args: impl FnOnce(&mut ArgsBuilder<'_>),
    ) -> Result<Path, PlanError> {
        check_number(&mut call)?;
        if self.is_dependent(&call) {
            let mut args = Vec::new();
            write_args(&mut ArgsBuilder::new(&mut args));
            self.go_on(Dependent::new((ticket, None), call, args, view)).map_err(|(_, refusal)| refusal)?;
            // What it does in the end is not known yet.
            return Ok(Path::Order);
        }
        self.admit(Asker::alone(ticket), call, view, write_args).map(|(_, path)| path)
    }

    /// Whether a call takes several transactions.
    #[inline]
    pub(crate) fn is_dependent(&self, call: &Call) -> bool {
        self.registry.get(call.procedure).is_some_and(|procedure| procedure.is_dependent())
    }

    /// Plans a transaction and puts it in the chunk for its home, or for a snapshot; answers its place.
    #[inline]
    pub(crate) fn admit(
        &mut self,
        asker: Asker,
        call: Call,
        view: View,
        write_args: impl FnOnce(&mut ArgsBuilder<'_>),
    ) -> Result<(Place, Path), PlanError> {
        let near = self.last_home;
        match self.admit_near(near, Asker { stream_place: None, ..asker }, call, view, write_args)? {
            Admitted::Placed(place, path) => Ok((place, path)),
            Admitted::NotYet(_) => Err(PlanError::fixed("ERR a request waits for itself; this is a bug")),
        }
    }

    /// Plans a transaction near one before it, and puts it where it belongs, unless others of its connection have to be
    /// answered first.
    #[inline]
    pub(crate) fn admit_near(
        &mut self,
        home: PartitionId,
        asker: Asker,
        call: Call,
        view: View,
        write_args: impl FnOnce(&mut ArgsBuilder<'_>),
    ) -> Result<Admitted, PlanError> {
        // Planted, ONCE.
        let session = call.session.filter(|_| !self.bugs.has(Bug::IgnoreRequest));
        let call = Call { session, ..call };
        let view = match view {
            // Planted, NOT-BACK.
            View::Since(_) if self.bugs.has(Bug::IgnoreToken) => View::Since(Token::NOTHING),
            view => view,
        };
        let is_ordered = view == View::Ordered || self.reads == Reads::Ordered;
        if let View::Within(step) = view {
            return self.admit_step(step, asker, call, write_args);
        }
        let near = usize::from(home.0);
        // A plan is large: it is made where the last one of the procedure lay, and moved if this one does not belong there.
        if !is_ordered && self.readers.contains(&call.procedure) {
            self.begin_read(&view);
            let is_read = self.reading.push(&self.registry, call, write_args)?.detached;
            if is_read && self.may_read(asker) {
                return Ok(Admitted::Placed(self.await_read(asker, view), Path::Snapshot));
            }
            if is_read || !self.may_order(asker) {
                return Ok(Admitted::NotYet(put_aside(&mut self.aside, &mut self.reading)));
            }
            self.readers.remove(&call.procedure);
            self.building[near].take(&mut self.reading);
            return Ok(Admitted::Placed(self.order(home, asker), Path::Order));
        }
        let is_read = self.building[near].push(&self.registry, call, write_args)?.detached && !is_ordered;
        if is_read {
            self.readers.insert(call.procedure);
            self.begin_read(&view);
        }
        if if is_read { !self.may_read(asker) } else { !self.may_order(asker) } {
            return Ok(Admitted::NotYet(put_aside(&mut self.aside, &mut self.building[near])));
        }
        if is_read {
            self.reading.take(&mut self.building[near]);
            return Ok(Admitted::Placed(self.await_read(asker, view), Path::Snapshot));
        }
        Ok(Admitted::Placed(self.order(home, asker), Path::Order))
    }

    /// Puts the transaction that was planned last, near another, in the chunk for its home.
    #[inline]
    fn order(&mut self, near: PartitionId, asker: Asker) -> Place {
        let Gateway { layout, partition, .. } = self;
        let chunk = &self.building[usize::from(near.0)];
        let txn = chunk.txns().last().expect("it was planned just above");
        let session = txn.call.session.filter(|_| !txn.read_only);
        let may_be_led = session.is_some() || !txn.logged;
        let answers = || layout.partition_of_shard(chunk.collector(txn, layout));
        let (best, answers) = match session {
            _ if layout.partitions() == 1 => (*partition, *partition),
            Some((session, _)) => (layout.home_partition_of(session), answers()),
            None => (chunk.only_partition(txn, layout).unwrap_or(*partition), answers()),
        };
        let home = self.home_in_order(asker, best);
        let places = [home, near].map(|partition| usize::from(partition.0));
        // One and the same, mostly.
        if let Ok([there, here]) = self.building.get_disjoint_mut(places) {
            there.take(here);
        }
        self.last_home = home;
        self.await_answer((home, best), Waiter::new(asker, answers, may_be_led))
    }

    /// Notes who waits for the transaction that was put last in the chunk for a home, which may not be the best one.
    #[inline]
    fn await_answer(&mut self, (home, best): (PartitionId, PartitionId), waiter: Waiter) -> Place {
        let chunk = &mut self.building[usize::from(home.0)];
        let place = self.pending.add(chunk, (home, None), waiter);
        if let Some(stream_place) = waiter.stream_place {
            self.sit_down(stream_place, place, (home, best));
        }
        let chunk = &self.building[usize::from(home.0)];
        if chunk.txns().len() >= MAX_CHUNK || chunk.bytes() >= MAX_CHUNK_BYTES {
            self.close(home);
        }
        place
    }

    /// Whether nothing else is read with what is to see this view. One that has seen what nobody here has heard of may
    /// have to wait for it: no other waits with it.
    fn is_read_alone(&self, view: &View) -> bool {
        match view {
            View::At(..) | View::Open(_) => true,
            View::Since(token) => !self.newest.covers(token),
            View::Ordered | View::Within(_) => false,
        }
    }

    /// Makes room for a transaction that will be put in the chunk of reads.
    fn begin_read(&mut self, view: &View) {
        if self.is_read_alone(view) && !self.reading.txns().is_empty() {
            self.close_reads();
        }
    }

    /// Notes who waits for the transaction that was put last in the chunk of reads.
    fn await_read(&mut self, asker: Asker, view: View) -> Place {
        let is_alone = self.is_read_alone(&view);
        if let View::Since(token) | View::Open(token) = &view {
            self.since.merge(token);
        }
        let home = self.partition;
        let waiter = Waiter::new(asker, home, false);
        let place = self.pending.add(&mut self.reading, (home, Some(view)), waiter);
        if let Some(stream_place) = asker.stream_place {
            self.wait_as_read(stream_place, place);
        }
        if is_alone || self.reading.txns().len() >= MAX_CHUNK || self.reading.bytes() >= MAX_CHUNK_BYTES {
            self.close_reads();
        }
        place
    }
}

/// Answers the number of the next attempt at a request. A number beyond those that there is room for stays: nobody makes so
/// many attempts, and it must not become another request.
pub(crate) fn next_attempt(RequestNo(number): RequestNo) -> RequestNo {
    RequestNo(if number & 0xff == 0xff { number } else { number + 1 })
}

/// Numbers the first attempt at a request of a session.
///
/// # Errors
/// The request's number is too large.
#[inline]
pub(crate) fn check_number(call: &mut Call) -> Result<(), PlanError> {
    if let Some((_, request)) = &mut call.session {
        if request.0 > RequestNo::LARGEST {
            return Err(PlanError::fixed("ERR request number exceeds 2^56 - 1"));
        }
        request.0 <<= 8;
    }
    Ok(())
}

/// Takes the last transaction out of a chunk again; answers its arguments.
pub(crate) fn put_aside(aside: &mut Chunk, chunk: &mut Chunk) -> Vec<u8> {
    aside.take(chunk);
    let args = aside.txns().last().map(|txn| aside.args(txn).encoded().to_vec());
    // Only its arguments are wanted.
    aside.clear();
    args.unwrap_or_default()
}
