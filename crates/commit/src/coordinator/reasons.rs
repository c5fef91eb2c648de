//! Errors that clients get for transactions that came to nothing.

use ordain_model::{Abort, OutcomeStatus, Writer};

use super::{Asker, Coordinator, GIVE_UP_AFTER, Live, NOWHERE};
use crate::desk::Desk;
use crate::voting::No;

/// The error for a reason, with the region that has said no if it was another one.
fn text_of(reason: Abort, no: Option<No>) -> String {
    let Some(No { by, .. }) = no else { return reason.text().to_owned() };
    match reason {
        Abort::Unavailable => format!("TXNABORT region {} cannot be reached: retry", by.0),
        reason => format!("TXNABORT region {} refused its part: {}: retry", by.0, cause(reason.text())),
    }
}

/// The cause that the text of a retryable reason gives.
fn cause(text: &str) -> &str {
    let text = text.strip_prefix("TXNABORT ").unwrap_or(text);
    text.strip_suffix(": retry").unwrap_or(text)
}

/// The error for a transaction that was tried as long as it may.
fn busy(live: &Live, reason: Abort) -> Vec<u8> {
    let (seconds, text) = (GIVE_UP_AFTER.0 / 1_000_000, text_of(reason, live.no));
    let mut reply = Vec::new();
    Writer(&mut reply).error(format!(
        "BUSY the transaction was tried for {seconds} s, {} times, and the last time {}: retry later",
        live.attempt,
        cause(&text)
    ));
    reply
}

impl Coordinator {
    /// No other attempt is made.
    pub(super) fn give_up(&mut self, number: u64, reason: Abort, desk: &mut Desk<'_>) {
        let Some(live) = self.live.get(&number) else { return };
        if live.open.is_some() {
            return self.lose(number, reason, desk);
        }
        if live.is_of_others() {
            return self.end_part(number, reason, desk);
        }
        // Nobody hears what the database itself has tried.
        let reply = if live.askers.is_empty() { Vec::new() } else { busy(live, reason) };
        self.end(number, OutcomeStatus::Busy, NOWHERE, &reply, desk);
    }

    /// Answers that a transaction came to nothing.
    pub(super) fn answer_lost(&mut self, asker: Asker, reason: Abort, no: Option<No>) {
        self.answer(asker, OutcomeStatus::Aborted(reason), NOWHERE, |out| {
            Writer(out).error(text_of(reason, no));
        });
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::PartitionId;

    use super::*;

    #[test]
    fn a_client_is_told_which_region_has_said_no_and_why() {
        let no = |reason| Some(No { by: PartitionId(2), reason });
        for (reason, no, expected) in [
            (Abort::Idle, None, Abort::Idle.text()),
            (
                Abort::StaleView,
                no(Abort::StaleView),
                "TXNABORT region 2 refused its part: what the transaction read of another region was too old: retry",
            ),
            (Abort::Unavailable, no(Abort::Unavailable), "TXNABORT region 2 cannot be reached: retry"),
        ] {
            assert_eq!(text_of(reason, no), expected);
        }
    }
}
