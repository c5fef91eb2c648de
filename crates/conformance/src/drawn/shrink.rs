//! Cutting a program down that is answered differently, as far as it stays so.

use super::{Difference, Program, Step};

/// The most programs that are tried.
const TRIES: usize = 600;

/// Cuts a failing program down: to steps and commands none of which can be left out, as far as the tries go.
pub(super) fn shrink(
    program: Program,
    difference: Difference,
    fails: &dyn Fn(&Program) -> Option<Difference>,
) -> (Program, Difference) {
    let mut shrinker = Shrinker { program, difference, fails, left: TRIES };
    // What comes after the difference plays no part, unless it was found at the end.
    let kept = shrinker.difference.step + 1;
    if kept < shrinker.program.steps.len() {
        let mut shorter = shrinker.program.clone();
        shorter.steps.truncate(kept);
        shrinker.attempt(shorter);
    }
    let mut before = usize::MAX;
    while shrinker.size() < before {
        before = shrinker.size();
        shrinker.drop_steps();
        shrinker.drop_commands();
    }
    shrinker.simplify();
    (shrinker.program, shrinker.difference)
}

struct Shrinker<'a> {
    program: Program,
    difference: Difference,
    fails: &'a dyn Fn(&Program) -> Option<Difference>,
    left: usize,
}

impl Shrinker<'_> {
    fn size(&self) -> usize {
        let size = |step: &Step| match step {
            Step::Send { commands, .. } => 1 + commands.len(),
            _ => 1,
        };
        self.program.steps.iter().map(size).sum()
    }

    /// Goes on with a program if it fails too.
    fn attempt(&mut self, program: Program) -> bool {
        if self.left == 0 || program == self.program {
            return false;
        }
        self.left -= 1;
        let Some(difference) = (self.fails)(&program) else { return false };
        (self.program, self.difference) = (program, difference);
        true
    }

    /// Leaves out runs of steps, the long ones first.
    fn drop_steps(&mut self) {
        let mut run = self.program.steps.len().div_ceil(2);
        while run > 0 {
            let mut at = 0;
            while at < self.program.steps.len() {
                let mut shorter = self.program.clone();
                let end = (at + run).min(shorter.steps.len());
                shorter.steps.drain(at..end);
                if !self.attempt(shorter) {
                    at += run;
                }
            }
            run /= 2;
        }
    }

    /// Leaves out single commands of what is sent at once.
    fn drop_commands(&mut self) {
        for step in (0..self.program.steps.len()).rev() {
            let mut at = 0;
            while let Step::Send { commands, .. } = &self.program.steps[step]
                && commands.len() > 1
                && at < commands.len()
            {
                let mut shorter = self.program.clone();
                if let Step::Send { commands, .. } = &mut shorter.steps[step] {
                    commands.remove(at);
                }
                if !self.attempt(shorter) {
                    at += 1;
                }
            }
        }
    }

    /// Has everything sent on the first connection in RESP2, if that makes no difference.
    fn simplify(&mut self) {
        let mut plain = self.program.clone();
        plain.speaks_resp3 = false;
        self.attempt(plain);
        let mut single = self.program.clone();
        for step in &mut single.steps {
            if let Step::Send { connection, .. } | Step::HangUp(connection) = step {
                *connection = 0;
            }
        }
        self.attempt(single);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(connection: usize, commands: &[&str]) -> Step {
        let words = |line: &&str| line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        Step::Send { connection, commands: commands.iter().map(words).collect() }
    }

    #[test]
    fn only_what_the_difference_needs_is_left() {
        let mut steps: Vec<Step> = (0..40).map(|n| send(n % 4, &["SET a 1", "GET a"])).collect();
        steps[7] = send(2, &["GET b", "SET bad 1", "GET c"]);
        steps[23] = send(3, &["GET d", "GET bad"]);
        let program = Program { speaks_resp3: true, steps };
        // The engine is wrong where a key is read that was set earlier.
        let fails = |program: &Program| {
            let commands = program.steps.iter().enumerate().flat_map(|(number, step)| match step {
                Step::Send { commands, .. } => {
                    commands.iter().map(|words| (number, words.concat())).collect()
                }
                _ => Vec::new(),
            });
            let mut is_set = false;
            commands.into_iter().find_map(|(step, words)| {
                is_set |= words == b"SETbad1";
                (is_set && words == b"GETbad").then(|| Difference { step, text: String::new() })
            })
        };
        let difference = fails(&program).unwrap();
        let (program, difference) = shrink(program, difference, &fails);
        assert_eq!(program.steps, [send(0, &["SET bad 1"]), send(0, &["GET bad"])]);
        assert_eq!((program.speaks_resp3, difference.step), (false, 1));
    }
}
