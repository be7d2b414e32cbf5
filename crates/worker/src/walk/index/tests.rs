use super::lookup3;
use super::places::Places;

#[test]
fn places_are_numbered_over_the_grid_and_over_the_maximum() {
    let most = u64::MAX;
    for (shape, max, chunk) in [
        (&[7, 9][..], &[7, 9][..], &[2, 4][..]),
        (&[7, 9], &[20, 30], &[2, 4]),
        (&[7, 9], &[7, most], &[2, 4]),
        (&[7, 9, 5], &[8, most, 11], &[1, 2, 2]),
        (&[7, 9, 5], &[most, 9, 6], &[3, 2, 2]),
        (&[5], &[most], &[1]),
        (&[], &[], &[]),
    ] {
        let places = Places::new(shape, max, chunk).unwrap();
        let mut numbers = Vec::new();
        for place in 0..places.count() {
            let coords = places.coords(place);
            assert_eq!(places.place(&coords), Some(place));
            assert_eq!(places.ceil(&coords), place);
            let number = places.number(place);
            assert_eq!(places.of_number(number), Some(place));
            numbers.push(number);
        }
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len() as u64, places.count());
    }
    let places = Places::new(&[7, 9], &[20, 30], &[2, 4]).unwrap();
    // Rows of three chunks: what lies beyond one is before the next.
    assert_eq!(places.ceil(&[1, 3]), 6);
    assert_eq!(places.ceil(&[1, 99]), 6);
    assert_eq!(places.ceil(&[4, 0]), 12);
    assert_eq!(places.place(&[1, 3]), None);
    assert_eq!(places.of_number(3), None);
    assert!(Places::new(&[7], &[7], &[0]).is_none());
    assert!(Places::new(&[u64::MAX, 2], &[u64::MAX, 2], &[1, 1]).is_none());
}

#[test]
fn known_sums() {
    // From the driver of Jenkins' own lookup3.c.
    assert_eq!(lookup3(b""), 0xdead_beef);
    assert_eq!(lookup3(b"Four score and seven years ago"), 0x1777_0551);
}
