//! A one-way mailbox between two threads: a bounded ring, and memory of the sender's for what does not fit.
//!
//! The sender never blocks and nothing is dropped. When the ring is full, items wait in order on the sender's
//! side and follow as soon as there is room; how much may be under way at all is for the roles to bound. The
//! same protocol that wakes a receiver for items wakes a sender for room.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use mio::Waker;
use rtrb::{Consumer, Producer, PushError, RingBuffer};

use crate::wake::Doorbell;

/// A thread that sleeps in `mio`.
#[derive(Debug)]
pub(crate) struct Party {
    bell: Doorbell,
    waker: Waker,
}

impl Party {
    /// The thread whose poll the waker belongs to.
    pub(crate) fn new(waker: Waker) -> Party {
        Party { bell: Doorbell::new(), waker }
    }

    /// The bell by which the thread announces its sleep.
    pub(crate) fn bell(&self) -> &Doorbell {
        &self.bell
    }

    /// Wakes the thread if it sleeps. To be called after publishing something.
    pub(crate) fn rouse(&self) {
        if self.bell.ring() {
            self.wake();
        }
    }

    /// Wakes the thread: if it does not sleep, its next sleep ends at once.
    pub(crate) fn wake(&self) {
        self.waker.wake().expect("an eventfd that this process holds open takes a write");
    }
}

/// Makes a mailbox whose ring holds `capacity` items.
pub(crate) fn mailbox<T>(capacity: usize, source: &Arc<Party>, target: &Arc<Party>) -> (Outlet<T>, Inlet<T>) {
    let (producer, consumer) = RingBuffer::new(capacity);
    let room = Arc::new(Doorbell::new());
    let outlet = Outlet {
        producer,
        overflow: VecDeque::new(),
        unannounced: false,
        room: room.clone(),
        target: target.clone(),
    };
    (outlet, Inlet { consumer, room, source: source.clone() })
}

/// The sending end.
pub(crate) struct Outlet<T> {
    producer: Producer<T>,
    /// What did not fit. Not empty only while the ring was full when last tried; newer items queue behind.
    overflow: VecDeque<T>,
    /// True if something was pushed since the receiver was last roused.
    unannounced: bool,
    /// Rung by the receiver when it has made room, if the sender waits for that.
    room: Arc<Doorbell>,
    target: Arc<Party>,
}

impl<T> Outlet<T> {
    /// Sends an item. The next [`Outlet::announce`] wakes the receiver.
    pub(crate) fn send(&mut self, item: T) {
        if !self.overflow.is_empty() {
            return self.overflow.push_back(item);
        }
        match self.producer.push(item) {
            Ok(()) => self.unannounced = true,
            Err(PushError::Full(item)) => self.overflow.push_back(item),
        }
    }

    /// Moves what waited into the ring as far as there is room, and rouses the receiver if it has something new.
    pub(crate) fn announce(&mut self) {
        while let Some(item) = self.overflow.pop_front() {
            match self.producer.push(item) {
                Ok(()) => self.unannounced = true,
                Err(PushError::Full(item)) => {
                    self.overflow.push_front(item);
                    break;
                }
            }
        }
        if std::mem::take(&mut self.unannounced) {
            self.target.rouse();
        }
    }

    /// Tells whether everything sent is in the ring.
    pub(crate) fn is_flushed(&self) -> bool {
        self.overflow.is_empty()
    }

    /// Tells whether the receiver's thread has ended.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.producer.is_abandoned()
    }

    /// Tells whether the sender may sleep: nothing waits, or the receiver will wake it when there is room.
    pub(crate) fn may_sleep(&self) -> bool {
        self.overflow.is_empty() || self.room.listen(|| self.producer.is_full())
    }

    /// The sender is awake again.
    pub(crate) fn awake(&self) {
        if !self.overflow.is_empty() {
            self.room.ignore();
        }
    }
}

impl<T> fmt::Debug for Outlet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outlet").field("overflow", &self.overflow.len()).finish_non_exhaustive()
    }
}

/// The receiving end.
pub(crate) struct Inlet<T> {
    consumer: Consumer<T>,
    room: Arc<Doorbell>,
    source: Arc<Party>,
}

impl<T> Inlet<T> {
    /// Takes up to `most` items, and says how many there were.
    pub(crate) fn take(&mut self, most: usize, each: impl FnMut(T)) -> usize {
        let count = self.consumer.slots().min(most);
        if count == 0 {
            return 0;
        }
        if let Ok(chunk) = self.consumer.read_chunk(count) {
            chunk.into_iter().for_each(each);
        }
        if self.room.ring() {
            self.source.wake();
        }
        count
    }

    /// Tells whether the ring is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.consumer.is_empty()
    }
}

impl<T> fmt::Debug for Inlet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inlet").field("filled", &self.consumer.slots()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poller::Poller;
    use proptest::prelude::*;

    #[test]
    fn a_sleeping_sender_is_woken_by_room_and_a_sleeping_receiver_by_items() {
        let (mut sender, a) = Poller::new().unwrap();
        let (mut receiver, b) = Poller::new().unwrap();
        let (mut outlet, mut inlet) = mailbox::<u32>(2, &a, &b);
        for i in 0..3 {
            outlet.send(i);
        }
        assert!(b.bell().listen(|| true));
        outlet.announce();
        receiver.wait_forever();
        assert!(!outlet.is_flushed() && outlet.may_sleep());
        let mut got = Vec::new();
        assert_eq!(inlet.take(1, |i| got.push(i)), 1);
        sender.wait_forever();
        outlet.awake();
        outlet.announce();
        assert!(outlet.is_flushed());
        assert_eq!(inlet.take(9, |i| got.push(i)), 2);
        assert_eq!(got, [0, 1, 2]);
    }

    proptest! {
        /// Whatever the capacity and however sending and taking alternate, every item arrives once, in order.
        #[test]
        fn keeps_order_and_loses_nothing(capacity in 1usize..5, steps in prop::collection::vec(0usize..7, 0..80)) {
            let (_, a) = Poller::new().unwrap();
            let (_, b) = Poller::new().unwrap();
            let (mut outlet, mut inlet) = mailbox(capacity, &a, &b);
            let (mut sent, mut got) = (0, Vec::new());
            for step in steps {
                match step {
                    0..=3 => {
                        outlet.send(sent);
                        sent += 1;
                    }
                    4 => outlet.announce(),
                    most => drop(inlet.take(most - 4, |i| got.push(i))),
                }
            }
            while got.len() < sent {
                outlet.announce();
                inlet.take(usize::MAX, |i| got.push(i));
            }
            prop_assert!(got.iter().copied().eq(0..sent));
        }
    }
}
