//! The next transaction, and its arguments (clauses 2.4.1 to 2.8.1).

use std::sync::Arc;

use ordain_model::{Abort, ArgsBuilder, Datum, OutcomeStatus, ProcedureId};

use super::audit::at_home::{self, AUDIT_HOME};
use super::delivery::{self, DELIVERY, DeliveryCall, MAX_CARRIER};
use super::load::Loader;
use super::new_order::{self, Line, NEW_ORDER, NewOrderCall};
use super::order_status::{ORDER_STATUS, OrderStatusCall};
use super::payment::{self, PAYMENT, PaymentCall, Who};
use super::random::{NuRand, last_name, uniform};
use super::schema::{ORDER_LINES, Prefix, Row};
use super::stock_level::{STOCK_LEVEL, StockLevelCall};
use super::{Kind, MULTI_CLASS, Mix, Parameters, Remote, Tpcc};
use crate::aggregate::{Aggregate, sums};
use crate::pool::share_of;
use crate::{Made, Source};
use ordain_model::Random;

/// One population of clients of several.
#[derive(Clone, Debug)]
pub struct Clients {
    parameters: Parameters,
    prefixes: Arc<[Prefix]>,
    /// The warehouses that they are at home in: all, unless these are at home in regions.
    homes: Arc<[u32]>,
    loader: Loader,
    /// The warehouses that they have yet to audit, where these are at home in regions.
    to_audit: Vec<u32>,
    /// The warehouse whose audit was made up last; none as long as there was none.
    audited: Option<u32>,
    random: Random,
    /// The transaction made up last; none as long as it loads.
    made: Option<Transaction>,
    summary: Summary,
}

/// A transaction that was made up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transaction {
    /// Of [`new_order`].
    NewOrder(NewOrderCall),
    /// Of [`payment`].
    Payment(PaymentCall),
    /// Of [`super::order_status`].
    OrderStatus(OrderStatusCall),
    /// Of [`delivery`].
    Delivery(DeliveryCall),
    /// Of [`super::stock_level`].
    StockLevel(StockLevelCall),
}

sums! {
    /// The sums of a population's answers to transactions that committed.
    pub struct Summary {
        /// The lines of the orders.
        pub lines: u64,
        /// The payments, in cents.
        pub paid_cents: u64,
        /// The orders that were delivered.
        pub delivered: u64,
        /// The answers that are not what such a transaction answers, and the aborts without a reason.
        pub odd: u64,
        /// The NewOrders that were made up, whatever became of them.
        pub new_orders: u64,
        /// The NewOrders with an item that there is not.
        pub unused_items: u64,
    }
}

/// Payments in a hundred whose customer is of another warehouse, and order lines.
const REMOTE_PAYMENTS: f64 = 0.15;
const REMOTE_LINES: f64 = 0.01;
/// Orders of an item that there is not.
const UNUSED_ITEMS: f64 = 0.01;
/// Customers that are found by their last name.
const BY_NAME: f64 = 0.6;

impl Clients {
    /// Population `number` of `populations`.
    pub(super) fn new(workload: &Tpcc, seed: u64, number: usize, populations: usize) -> Clients {
        let Parameters { warehouses, scale, partitions, at_home, .. } = workload.parameters;
        // As many populations are in each region, one after the other.
        let each = if at_home { (populations / partitions).max(1) } else { populations };
        let (region, place) = (number / each.max(1), number % each.max(1));
        let is_home = |warehouse: &u32| !at_home || *warehouse as usize % partitions == region;
        let homes: Arc<[u32]> = (1..=warehouses).filter(is_home).collect();
        let own = share_of(homes.len() as u64, place, each);
        let to_audit =
            if at_home { homes[own.start as usize..own.end as usize].to_vec() } else { Vec::new() };
        Clients {
            parameters: workload.parameters,
            prefixes: workload.prefixes.clone(),
            loader: Loader::new(seed, scale, homes.clone(), place, each),
            homes,
            to_audit,
            audited: None,
            random: Random::stream(seed, number as u64),
            made: None,
            summary: Summary::default(),
        }
    }

    /// The transaction made up last: what another protocol's form of the workload plays.
    pub fn made(&self) -> Option<&Transaction> {
        self.made.as_ref()
    }

    /// Draws whether a transaction of this kind has a warehouse of another region.
    fn is_multi_region(&mut self, kind: Kind) -> bool {
        match self.parameters {
            Parameters { at_home: true, remote: Remote::Share(share), .. } => {
                matches!(kind, Kind::NewOrder | Kind::Payment) && self.random.unit() < share
            }
            _ => false,
        }
    }

    /// The kind of the next transaction with a warehouse of another region.
    fn multi_region_kind(&mut self) -> Kind {
        let Mix { new_order, payment, .. } = self.parameters.mix;
        if self.random.unit() * (new_order + payment) < new_order { Kind::NewOrder } else { Kind::Payment }
    }

    fn kind(&mut self) -> Kind {
        let mut at = self.random.unit() * 100.0;
        for (kind, percent) in Kind::ALL.into_iter().zip(self.parameters.mix.percents()) {
            at -= percent;
            if at < 0.0 {
                return kind;
            }
        }
        // Rounding has carried it past the end: the last kind that there is at all.
        let percents = self.parameters.mix.percents();
        Kind::ALL.into_iter().zip(percents).rev().find(|(_, p)| *p > 0.0).map_or(Kind::NewOrder, |(k, _)| k)
    }

    fn warehouse(&mut self) -> u32 {
        let place = uniform(&mut self.random, 1, self.homes.len() as u32);
        self.homes[place as usize - 1]
    }

    fn district(&mut self) -> u8 {
        uniform(&mut self.random, 1, u32::from(self.parameters.scale.districts)) as u8
    }

    /// Another warehouse, if there is one; in another partition, if that is asked for and there is one.
    fn other_warehouse(&mut self, home: u32, elsewhere: bool) -> u32 {
        let Parameters { warehouses, partitions, .. } = self.parameters;
        if warehouses == 1 {
            return home;
        }
        loop {
            let other = uniform(&mut self.random, 1, warehouses);
            let same_partition = other as usize % partitions == home as usize % partitions;
            if other != home && !(elsewhere && partitions > 1 && same_partition) {
                return other;
            }
        }
    }

    fn customer(&mut self) -> u32 {
        NuRand::CUSTOMER.draw(&mut self.random, 1, self.parameters.scale.customers)
    }

    fn who(&mut self) -> Who {
        if self.random.unit() < BY_NAME {
            let names = self.parameters.scale.last_names();
            Who::Name(last_name(NuRand::LAST_NAME.draw(&mut self.random, 0, names - 1)).to_vec())
        } else {
            Who::Id(self.customer())
        }
    }

    fn new_order(&mut self, mut lines: Vec<Line>, share: f64) -> NewOrderCall {
        let items = self.parameters.scale.items;
        let (warehouse, district, customer) = (self.warehouse(), self.district(), self.customer());
        let count = uniform(&mut self.random, ORDER_LINES.0, ORDER_LINES.1) as usize;
        lines.clear();
        for _ in 0..count {
            let item = NuRand::ITEM.draw(&mut self.random, 1, items);
            let remote = self.parameters.remote == Remote::Standard && self.random.unit() < REMOTE_LINES;
            let supply_warehouse = if remote { self.other_warehouse(warehouse, false) } else { warehouse };
            let quantity = uniform(&mut self.random, 1, 10) as u8;
            lines.push(Line { item, supply_warehouse, quantity });
        }
        if let Remote::Share(_) = self.parameters.remote
            && self.random.unit() < share
        {
            let second = self.other_warehouse(warehouse, true);
            let line = self.random.below(count as u64) as usize;
            lines[line].supply_warehouse = second;
        }
        if self.random.unit() < UNUSED_ITEMS
            && let Some(last) = lines.last_mut()
        {
            last.item = items + 1;
            self.summary.unused_items += 1;
        }
        self.summary.new_orders += 1;
        NewOrderCall { warehouse, district, customer, lines }
    }

    fn payment(&mut self, share: f64) -> PaymentCall {
        let (warehouse, district) = (self.warehouse(), self.district());
        let (share, elsewhere) = match self.parameters.remote {
            Remote::Standard => (REMOTE_PAYMENTS, false),
            Remote::Share(_) => (share, true),
        };
        let (customer_warehouse, customer_district) = if self.random.unit() < share {
            (self.other_warehouse(warehouse, elsewhere), self.district())
        } else {
            (warehouse, district)
        };
        let customer = self.who();
        let amount_cents = i64::from(uniform(&mut self.random, 100, 500_000));
        PaymentCall { warehouse, district, customer_warehouse, customer_district, customer, amount_cents }
    }

    /// Makes up a transaction of a kind, which has a second warehouse with this likelihood where that is a share.
    fn make(&mut self, kind: Kind, share: f64) -> Made {
        let lines = match self.made.take() {
            Some(Transaction::NewOrder(call)) => call.lines,
            _ => Vec::new(),
        };
        let (procedure, made) = match kind {
            Kind::NewOrder => (NEW_ORDER, Transaction::NewOrder(self.new_order(lines, share))),
            Kind::Payment => (PAYMENT, Transaction::Payment(self.payment(share))),
            Kind::OrderStatus => {
                let (warehouse, district, customer) = (self.warehouse(), self.district(), self.who());
                let call = OrderStatusCall { warehouse, district, customer };
                (ORDER_STATUS, Transaction::OrderStatus(call))
            }
            Kind::Delivery => {
                let warehouse = self.warehouse();
                let carrier = uniform(&mut self.random, 1, u32::from(MAX_CARRIER)) as u8;
                let districts = self.parameters.scale.districts;
                (DELIVERY, Transaction::Delivery(DeliveryCall { warehouse, districts, carrier }))
            }
            Kind::StockLevel => {
                let (warehouse, district) = (self.warehouse(), self.district());
                let threshold = uniform(&mut self.random, 10, 20) as u8;
                (STOCK_LEVEL, Transaction::StockLevel(StockLevelCall { warehouse, district, threshold }))
            }
        };
        self.made = Some(made);
        let [one, several] = kind.numbers();
        Made { procedure, kind: if self.parameters.at_home && share > 0.0 { several } else { one } }
    }
}

impl Source for Clients {
    fn load(&mut self) -> Option<ProcedureId> {
        self.made = None;
        self.loader.load()
    }

    fn next(&mut self) -> Made {
        let kind = self.kind();
        if self.parameters.at_home {
            let is_multi = self.is_multi_region(kind);
            return self.make(kind, if is_multi { 1.0 } else { 0.0 });
        }
        let share = match self.parameters.remote {
            Remote::Share(share) => share,
            Remote::Standard => 0.0,
        };
        self.make(kind, share)
    }

    fn next_of(&mut self, class: usize) -> Made {
        if class == MULTI_CLASS {
            let kind = self.multi_region_kind();
            return self.make(kind, 1.0);
        }
        let kind = self.kind();
        self.make(kind, 0.0)
    }

    fn audit(&mut self) -> Option<ProcedureId> {
        self.audited = self.to_audit.pop();
        self.audited.map(|_| AUDIT_HOME)
    }

    fn write_args(&self, args: &mut ArgsBuilder<'_>) {
        if let Some(prefix) = self.audited.and_then(|number| self.prefixes.get(number as usize - 1)) {
            return at_home::write_args(prefix, &self.parameters.scale, args);
        }
        match &self.made {
            Some(made) => made.write_args(&self.prefixes, args),
            None => self.loader.write_args(&self.prefixes, args),
        }
    }

    fn answered(&mut self, kind: u8, status: OutcomeStatus, reply: &[u8]) {
        match status {
            OutcomeStatus::Committed => {}
            // An engine may restart a transaction in vain; any other abort has one reason only.
            OutcomeStatus::Aborted(abort)
                if !matches!(abort, Abort::Restart | Abort::Conflict | Abort::Cascade) =>
            {
                let is_expected = (Kind::numbered(kind), abort) == (Some(Kind::NewOrder), Abort::Logic)
                    && Datum::first(reply) == Datum::Error(new_order::UNUSED_ITEM.as_bytes());
                self.summary.odd += u64::from(!is_expected);
                return;
            }
            _ => return,
        }
        let understood = match Kind::numbered(kind) {
            Some(Kind::NewOrder) => {
                new_order::read_reply(reply).map(|lines| self.summary.lines += u64::from(lines))
            }
            Some(Kind::Payment) => {
                payment::read_reply(reply).map(|cents| self.summary.paid_cents += cents.unsigned_abs())
            }
            Some(Kind::Delivery) => {
                delivery::read_reply(reply).map(|delivered| self.summary.delivered += delivered)
            }
            Some(Kind::OrderStatus) => super::order_status::is_reply(reply).then_some(()),
            Some(Kind::StockLevel) => super::stock_level::is_reply(reply).then_some(()),
            None => None,
        };
        self.summary.odd += u64::from(understood.is_none());
    }

    fn summary(&mut self) -> Vec<u8> {
        self.summary.encoded()
    }
}

impl Transaction {
    /// Writes the arguments of the call. A warehouse without a prefix is left out, which the plan refuses.
    pub(super) fn write_args(&self, prefixes: &[Prefix], args: &mut ArgsBuilder<'_>) {
        let mut push = |warehouse: u32, row: Row<'_>| {
            if let Some(prefix) = prefixes.get((warehouse as usize).wrapping_sub(1)) {
                args.push(&prefix.key(row));
            }
        };
        match self {
            Transaction::NewOrder(call) => {
                push(call.warehouse, Row::Warehouse);
                push(call.warehouse, Row::Customer(call.district, call.customer));
                call.lines.iter().for_each(|line| push(call.warehouse, Row::Item(line.item)));
                call.lines.iter().for_each(|line| push(line.supply_warehouse, Row::Stock(line.item)));
                push(call.warehouse, Row::District(call.district));
                let mut packed = [0; 1 + new_order::MAX_LINES];
                packed[0] = call.district;
                packed[1..].iter_mut().zip(&call.lines).for_each(|(byte, line)| *byte = line.quantity);
                args.push(&packed[..packed.len().min(1 + call.lines.len())]);
            }
            Transaction::Payment(call) => {
                push(call.warehouse, Row::Warehouse);
                push(call.warehouse, Row::District(call.district));
                push(call.customer_warehouse, call.customer.row(call.customer_district));
                args.push(&call.amount_cents.to_le_bytes());
            }
            Transaction::OrderStatus(call) => {
                push(call.warehouse, call.customer.row(call.district));
                push(call.warehouse, Row::District(call.district));
            }
            Transaction::Delivery(call) => {
                (1..=call.districts).for_each(|district| push(call.warehouse, Row::District(district)));
                args.push(&[call.carrier]);
            }
            Transaction::StockLevel(call) => {
                push(call.warehouse, Row::District(call.district));
                args.push(&[call.threshold]);
            }
        }
    }
}
