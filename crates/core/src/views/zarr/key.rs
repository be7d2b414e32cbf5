//! Keys of Zarr: names of groups and arrays, and of chunks.

/// The size in bytes of the longest file name.
const LONGEST: usize = 255;

/// Returns the reason why a group or an array cannot have a name.
pub(super) fn refusal(name: &[u8]) -> Option<&'static str> {
    if name.is_empty() {
        return Some("Zarr has no empty names");
    }
    if name.iter().all(|&b| b == b'.') {
        return Some("Zarr has no names of periods only");
    }
    if name.contains(&b'/') || name.contains(&0) {
        return Some("Zarr has no names with / in them");
    }
    if name.starts_with(b".z") || name == b"zarr.json" {
        return Some("a name that Zarr gives to its metadata");
    }
    if std::str::from_utf8(name).is_err() {
        return Some("Zarr has no names that are not UTF-8");
    }
    (name.len() > LONGEST).then_some("a name of over 255 bytes")
}

/// The prefix of netCDF-4 for the name of a variable that has the name of a dimension without being its coordinate.
const NOT_A_COORDINATE: &[u8] = b"_nc4_non_coord_";

/// Returns the name by which programs know an object: netCDF-4 stores some variables under other names.
pub(super) fn known_name(name: &[u8]) -> &[u8] {
    name.strip_prefix(NOT_A_COORDINATE)
        .filter(|known| !known.is_empty())
        .unwrap_or(name)
}

/// Returns the name of a chunk at a place in the grid.
pub(super) fn of_chunk(place: &[u64]) -> Vec<u8> {
    if place.is_empty() {
        return b"0".to_vec();
    }
    let numbers: Vec<String> = place.iter().map(u64::to_string).collect();
    numbers.join(".").into_bytes()
}

/// Returns the place for the name of a chunk, in a grid with these counts of chunks along each dimension; `None` if no
/// chunk has exactly this name.
pub(super) fn place(name: &[u8], counts: &[u64]) -> Option<Vec<u64>> {
    if counts.is_empty() {
        return (name == b"0").then(Vec::new);
    }
    let number = |digits: &[u8]| -> Option<u64> {
        let canonical = digits == b"0" || matches!(digits.first(), Some(b'1'..=b'9'));
        let digits = canonical.then(|| std::str::from_utf8(digits).ok())??;
        digits.bytes().all(|b| b.is_ascii_digit()).then_some(())?;
        digits.parse().ok()
    };
    let place: Vec<u64> = name
        .split(|&b| b == b'.')
        .map(number)
        .collect::<Option<_>>()?;
    let is_in = place.len() == counts.len() && place.iter().zip(counts).all(|(at, n)| at < n);
    is_in.then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::array::place_of;

    #[test]
    fn names_that_zarr_cannot_have_are_refused() {
        for bad in [
            "",
            ".",
            "..",
            "...",
            "a/b",
            ".zattrs",
            ".zx",
            "zarr.json",
            "a\0b",
        ] {
            assert!(refusal(bad.as_bytes()).is_some(), "{bad:?}");
        }
        assert!(refusal(b"\xff").is_some());
        assert!(refusal(&[b'a'; 256]).is_some());
        for good in ["a", "a.npy", "%41", "c", "0.0", "\u{e9} #", ".a", "_index"] {
            assert!(refusal(good.as_bytes()).is_none(), "{good:?}");
        }
        // The specification of Zarr 3 reserves the name, but its programs read it: AnnData has groups with this name.
        assert!(refusal(b"__categories").is_none());
    }

    #[test]
    fn chunks_have_one_name_each() {
        let counts = [3, 1, 11];
        for number in 0..33 {
            let at = place_of(number, &counts);
            assert_eq!(place(&of_chunk(&at), &counts), Some(at));
        }
        for bad in [
            "",
            "0",
            "0.0",
            "3.0.0",
            "0.1.0",
            "0.0.11",
            "00.0.0",
            "0.0.01",
            "+1.0.0",
            "0.0.0.0",
            "0..0",
            "a.0.0",
            "0.0.0 ",
            "0.0.99999999999999999999",
        ] {
            assert_eq!(place(bad.as_bytes(), &counts), None, "{bad:?}");
        }
        assert_eq!(of_chunk(&[]), b"0");
        assert_eq!(place(b"0", &[]), Some(vec![]));
        assert_eq!(place(b"1", &[]), None);
        assert_eq!(place(b"0", &[0]), None);
    }
}
