//! Numbers as people read them: sizes, shapes, shares.

/// Returns a shape as Python writes it, without blanks.
pub fn shape(shape: &[u64]) -> String {
    match shape {
        [one] => format!("({one},)"),
        all => {
            let all: Vec<String> = all.iter().map(u64::to_string).collect();
            format!("({})", all.join(","))
        }
    }
}

/// Returns a number of bytes with three digits: `999`, `1.2K`, `34.5M`.
pub fn rounded(size: u64) -> String {
    let mut units = ["", "K", "M", "G", "T", "P"].into_iter();
    let (mut left, mut unit) = (size as f64, units.next().unwrap_or_default());
    // 1023.97 would be shown as 1024.0.
    while left >= 1023.95
        && let Some(next) = units.next()
    {
        (left, unit) = (left / 1024.0, next);
    }
    match unit {
        "" => size.to_string(),
        _ => format!("{left:.1}{unit}"),
    }
}

/// Returns a number of bytes with its unit: `1 byte`, `999 bytes`, `1.2K`.
pub fn bytes(size: u64) -> String {
    match size {
        1 => "1 byte".to_owned(),
        0..1024 => format!("{size} bytes"),
        _ => rounded(size),
    }
}

/// Returns a number of things, with the word for one of them.
pub fn count(number: u64, one: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {one}s"),
    }
}

/// Lines `name  value`, the values below each other.
#[derive(Debug, Default)]
pub struct Table(pub Vec<(String, String)>);

impl Table {
    /// Adds a line.
    pub fn push(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.push((name.into(), value.into()));
    }

    /// Returns the lines, each behind `indent` blanks.
    pub fn lines(&self, indent: usize) -> String {
        let long = |name: &String| name.chars().count();
        let width = self.0.iter().map(|(name, _)| long(name)).max().unwrap_or(0);
        let line = |(name, value): &(String, String)| {
            let blanks = " ".repeat(width - long(name) + 2);
            let line = format!("{}{name}{blanks}{value}", " ".repeat(indent));
            format!("{}\n", line.trim_end())
        };
        self.0.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_shapes_are_short() {
        let sizes = [
            0,
            1023,
            1024,
            1300,
            1 << 20,
            (1 << 20) - 1,
            5 << 40,
            u64::MAX,
        ];
        let shown = [
            "0", "1023", "1.0K", "1.3K", "1.0M", "1.0M", "5.0T", "16384.0P",
        ];
        assert_eq!(sizes.map(rounded), shown);
        assert_eq!(shape(&[]), "()");
        assert_eq!(shape(&[3]), "(3,)");
        assert_eq!(shape(&[3, 4]), "(3,4)");
        assert_eq!([0, 1, 1024].map(bytes), ["0 bytes", "1 byte", "1.0K"]);
        assert_eq!(
            [1, 2].map(|n| count(n, "element")),
            ["1 element", "2 elements"]
        );
    }

    #[test]
    fn values_stand_below_each_other() {
        let mut table = Table::default();
        table.push("größe", "1");
        table.push("a", "");
        table.push("bc", "2");
        assert_eq!(table.lines(1), " größe  1\n a\n bc     2\n");
    }
}
