//! Conservation (calvin.md, section 8, oracle 7): what no transaction changes is the same in every answer,
//! whatever the log holds. It needs no reference executor, so a mistake in that does not hide here.

use ordain_model::{OutcomeStatus, ProcedureId};

use super::{Violation, ViolationKind};
use crate::history::History;

/// Checks that every answer of the named procedures is the one they must always give.
///
/// # Errors
/// [`ViolationKind::NotConserved`].
pub fn check(history: &History, conserved: &[(ProcedureId, Vec<u8>)]) -> Result<(), Violation> {
    for (id, request, answer) in history.answers() {
        let Some((_, always)) = conserved.iter().find(|(p, _)| *p == request.call.procedure) else {
            continue;
        };
        if answer.status == OutcomeStatus::Committed && answer.reply != *always {
            let text = format!("an audit answered {:?} where it must answer {always:?}", answer.reply);
            return Err(Violation::new(ViolationKind::NotConserved, text).at(answer.gsn()).of(id));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::fixture::reply_int;
    use super::*;
    use ordain_model::{Call, Gsn, Micros};
    use ordain_sim::workload::procedures as p;

    #[test]
    fn money_that_appears_is_caught() {
        let mut history = History::default();
        let always = [(p::AUDIT, reply_int(0))];
        for (procedure, n, right) in [(p::AUDIT, 0, true), (p::COUNT, 5, true), (p::AUDIT, 5, false)] {
            let id = history.sent(Micros(0), Call::new(procedure, p::ACCOUNTS), Vec::new());
            history.answered(id, OutcomeStatus::Committed, Gsn(9), &reply_int(n));
            let verdict = check(&history, &always).map_err(|violation| violation.kind);
            assert_eq!(verdict, if right { Ok(()) } else { Err(ViolationKind::NotConserved) });
        }
    }
}
