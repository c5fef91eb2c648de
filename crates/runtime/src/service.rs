//! Threads that do for event loops what would hold them up, and the mailboxes by which each loop reaches one of them.

use std::sync::Arc;

use crate::control::Control;
use crate::mailbox::{Inlet, Outlet, Party, mailbox};
use crate::poller::Poller;

/// The most requests that a service thread takes from one loop before it looks at the next.
const TURN: usize = 64;

/// A loop's way to one service thread.
pub(crate) struct Line<J, A> {
    pub(crate) jobs: Outlet<J>,
    pub(crate) answers: Inlet<A>,
}

/// A service thread's ends of a loop's line.
pub(crate) type Port<J, A> = (Inlet<J>, Outlet<A>);

impl<J, A> Line<J, A> {
    /// A line of two mailboxes between a loop and a service thread, and its port.
    pub(crate) fn new(capacity: usize, own: &Arc<Party>, server: &Arc<Party>) -> (Line<J, A>, Port<J, A>) {
        let (jobs, inbound) = mailbox(capacity, own, server);
        let (outbound, answers) = mailbox(capacity, server, own);
        (Line { jobs, answers }, (inbound, outbound))
    }
}

/// The end of what a service thread owes to loops that have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Debt {
    /// What they asked for is done nevertheless.
    Paid,
    /// It is not needed.
    Dropped,
}

/// A service thread.
pub(crate) struct Service<J, A> {
    pub(crate) poller: Poller,
    pub(crate) me: Arc<Party>,
    pub(crate) control: Arc<Control>,
    pub(crate) debt: Debt,
    /// Does one job.
    pub(crate) serve: Box<dyn FnMut(J) -> A + Send>,
    /// To and from each loop.
    pub(crate) ports: Vec<Port<J, A>>,
}

impl<J, A> Service<J, A> {
    /// Works until all loops have ended and, if that is owed, what they asked for is done, or until the node halts.
    pub(crate) fn run(&mut self) {
        loop {
            // Read before looking at the mailboxes: the last jobs were sent before the last loop ended.
            let last = self.control.loops_have_ended();
            if self.control.is_halted() || last && self.debt == Debt::Dropped || !self.turn() && last {
                return;
            }
        }
    }

    /// Does some of what there is, or sleeps until there is something; says whether anything was done.
    pub(crate) fn turn(&mut self) -> bool {
        // Jobs that do not count after the end are long ones: loops are served in turn, job by job.
        let turn = if self.debt == Debt::Dropped { 1 } else { TURN };
        let mut done = 0;
        for (jobs, answers) in &mut self.ports {
            let serve = &mut self.serve;
            done += jobs.take(turn, |job| {
                answers.send(serve(job));
                answers.announce();
            });
            answers.announce();
        }
        if done == 0 && self.may_sleep() {
            self.poller.wait_forever();
        }
        self.me.bell().ignore();
        self.ports.iter().for_each(|(_, answers)| answers.awake());
        done > 0
    }

    fn may_sleep(&self) -> bool {
        let idle = || {
            self.ports.iter().all(|(jobs, _)| jobs.is_empty())
                && !self.control.loops_have_ended()
                && !self.control.is_halted()
        };
        self.me.bell().listen(idle) && self.ports.iter().all(|(_, answers)| answers.may_sleep())
    }
}
