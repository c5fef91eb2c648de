//! Conditions: comparisons and logical operators as jumps.

use super::{Compiled, Compiler};
use crate::ast::{Binary, Expr, ExprId, Unary};
use crate::op::Op;

impl Compiler<'_, '_> {
    /// The value of a condition.
    pub(super) fn condition_to(&mut self, id: ExprId, a: u8) -> Compiled<()> {
        if let Expr::Unary(Unary::Not, operand) = self.expr(id).0
            && !self.is_condition(*operand)
        {
            let b = self.any(*operand)?;
            self.emit(Op::Not { a, b });
            return Ok(());
        }
        let jumps = self.jump_if(id, false)?;
        self.boolean(jumps, a);
        Ok(())
    }

    fn is_condition(&self, id: ExprId) -> bool {
        match self.expr(id).0 {
            Expr::Unary(operator, _) => *operator == Unary::Not,
            Expr::Binary(operator, ..) => operator.is_comparison(),
            _ => false,
        }
    }

    /// True, or false if one of the jumps was taken.
    pub(super) fn boolean(&mut self, jumps: Vec<usize>, a: u8) {
        self.emit(Op::LoadBool { a, value: true });
        let end = self.jump();
        self.patch_here(jumps);
        self.emit(Op::LoadBool { a, value: false });
        self.patch_here(vec![end]);
    }

    /// Jumps if a condition is so; else goes on. Answers the jumps.
    pub(super) fn jump_if(&mut self, id: ExprId, when: bool) -> Compiled<Vec<usize>> {
        let (expr, _) = self.expr(id);
        match expr {
            Expr::Paren(inner) => self.jump_if(*inner, when),
            Expr::Unary(Unary::Not, operand) => self.jump_if(*operand, !when),
            Expr::True | Expr::Number(_) | Expr::Text(_) if !when => Ok(Vec::new()),
            Expr::Binary(operator @ (Binary::And | Binary::Or), ..) => {
                // Operands of one operator, without recursion to the left.
                let mut operands = Vec::new();
                let mut left = id;
                while let Expr::Binary(other, l, r) = self.expr(left).0
                    && other == operator
                {
                    operands.push(*r);
                    left = *l;
                }
                operands.push(left);
                let decides = *operator == Binary::Or;
                let mut jumps = Vec::new();
                if decides == when {
                    for operand in operands.into_iter().rev() {
                        jumps.extend(self.jump_if(operand, when)?);
                    }
                    return Ok(jumps);
                }
                let mut out = Vec::new();
                while let Some(operand) = operands.pop() {
                    match operands.is_empty() {
                        true => jumps.extend(self.jump_if(operand, when)?),
                        false => out.extend(self.jump_if(operand, decides)?),
                    }
                }
                self.patch_here(out);
                Ok(jumps)
            }
            Expr::Binary(operator, ..) if operator.is_comparison() => self.compare(id, None, when),
            _ => {
                let base = self.f().free;
                let a = self.any(id)?;
                self.free_to(base);
                Ok(vec![self.emit_jump(Op::Test { a, when, to: 0 })])
            }
        }
    }

    /// Jumps if a comparison is so. Its left side may be in a register already.
    pub(super) fn compare(&mut self, id: ExprId, left: Option<u8>, when: bool) -> Compiled<Vec<usize>> {
        let base = self.f().free;
        let (Expr::Binary(operator, l, r), line) = self.expr(id) else { return Ok(Vec::new()) };
        let deep = matches!(self.expr(*l).0, Expr::Binary(..));
        let b = match left {
            Some(register) => u16::from(register),
            // A chain to the left is not followed by recursion.
            None if deep => {
                let register = self.reserve(1)?;
                self.binary_to(*l, register)?;
                u16::from(register)
            }
            None => self.operand(*l)?,
        };
        let c = self.operand(*r)?;
        self.f().line = line;
        self.emit(match operator {
            Binary::Eq => Op::Eq { when, b, c },
            Binary::Ne => Op::Eq { when: !when, b, c },
            Binary::Lt => Op::Lt { when, b, c },
            Binary::Le => Op::Le { when, b, c },
            Binary::Gt => Op::Lt { when, b: c, c: b },
            _ => Op::Le { when, b: c, c: b },
        });
        self.free_to(base);
        Ok(vec![self.jump()])
    }
}
