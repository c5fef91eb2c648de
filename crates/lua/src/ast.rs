//! The tree of a chunk. Nodes stand in arenas, so that a deep tree is freed without recursion.

use std::sync::Arc;

/// A place among the expressions.
pub(crate) type ExprId = u32;
/// A place among the names.
pub(crate) type NameId = u32;
/// A place among the blocks.
pub(crate) type BlockId = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Pow,
    Concat,
    Ne,
    Eq,
    Lt,
    Le,
    Gt,
    Ge,
    And,
    Or,
}

impl Binary {
    pub(crate) fn is_comparison(self) -> bool {
        matches!(self, Binary::Eq | Binary::Ne | Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    Minus,
    Not,
    Len,
}

#[derive(Debug)]
pub(crate) enum Field {
    Item(ExprId),
    Pair(ExprId, ExprId),
}

#[derive(Debug)]
pub(crate) enum Expr {
    Nil,
    True,
    False,
    Vararg,
    Number(f64),
    Text(NameId),
    Name(NameId),
    Function(Box<Function>),
    Index(ExprId, ExprId),
    Call(ExprId, Vec<ExprId>),
    Method(ExprId, NameId, Vec<ExprId>),
    Binary(Binary, ExprId, ExprId),
    Unary(Unary, ExprId),
    Table(Vec<Field>),
    Paren(ExprId),
}

#[derive(Debug)]
pub(crate) struct Function {
    pub params: Vec<NameId>,
    pub is_vararg: bool,
    pub body: BlockId,
    pub line: u32,
    pub last_line: u32,
}

#[derive(Debug)]
pub(crate) enum Stat {
    Expr(ExprId),
    Local(Vec<NameId>, Vec<ExprId>),
    LocalFunction(NameId, ExprId),
    Assign(Vec<ExprId>, Vec<ExprId>),
    Do(BlockId),
    While(ExprId, BlockId),
    Repeat(BlockId, ExprId),
    /// Conditions with their blocks, then the block of `else`.
    If(Vec<(ExprId, BlockId)>, Option<BlockId>),
    For(NameId, ExprId, ExprId, Option<ExprId>, BlockId),
    ForIn(Vec<NameId>, Vec<ExprId>, BlockId),
    Return(Vec<ExprId>),
    Break,
}

#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub exprs: Vec<(Expr, u32)>,
    pub blocks: Vec<Vec<(Stat, u32)>>,
    pub names: Vec<Arc<[u8]>>,
}
