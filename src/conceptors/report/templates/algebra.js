"use strict";
// The mathematics of the page. Matrices are symmetric, Float64Arrays, row by row.
//
// At one aperture α the odds of a conceptor are α² R, and odds are what logic works on: OR adds
// them, AND takes their parallel sum A (A + B)⁺ B, NOT inverts them. Both of the former commute
// with α². So one R stands for every OR and AND at all apertures, and moving the aperture changes
// one number per direction: s = λ / (λ + α⁻²).
const algebra = (() => {
  const size = (matrix) => Math.round(Math.sqrt(matrix.length));

  // Eigenvalues, descending, and eigenvectors, one per row: Jacobi's rotations, sweep by sweep.
  function eigen(matrix) {
    const n = size(matrix), a = Float64Array.from(matrix), turned = new Float64Array(n * n);
    for (let i = 0; i < n; i++) turned[i * n + i] = 1;
    const norm = Math.sqrt(a.reduce((sum, x) => sum + x * x, 0));
    const negligible = 1e-17 * norm;
    for (let sweep = 0, left = true; left && sweep < 40; sweep++) {
      left = false;
      for (let p = 0; p < n - 1; p++) {
        for (let q = p + 1; q < n; q++) {
          if (Math.abs(a[p * n + q]) <= negligible) continue;
          left = true;
          rotate(a, turned, n, p, q);
        }
      }
    }
    const order = Array.from({ length: n }, (_, k) => k);
    order.sort((i, j) => a[j * n + j] - a[i * n + i]);
    const vectors = new Float64Array(n * n);
    order.forEach((from, to) => vectors.set(turned.subarray(from * n, from * n + n), to * n));
    return { n, values: Float64Array.from(order, (k) => a[k * n + k]), vectors };
  }

  // The rotation that makes a[p, q] zero, of a on both sides and of the rows of `turned`.
  function rotate(a, turned, n, p, q) {
    const theta = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
    const t = (theta < 0 ? -1 : 1) / (Math.abs(theta) + Math.hypot(theta, 1));
    const c = 1 / Math.hypot(t, 1), s = t * c;
    for (let k = 0; k < n; k++) {
      const x = a[k * n + p], y = a[k * n + q];
      a[k * n + p] = c * x - s * y;
      a[k * n + q] = s * x + c * y;
    }
    for (const rows of [a, turned]) {
      for (let k = 0; k < n; k++) {
        const x = rows[p * n + k], y = rows[q * n + k];
        rows[p * n + k] = c * x - s * y;
        rows[q * n + k] = s * x + c * y;
      }
    }
    a[p * n + q] = a[q * n + p] = 0;
  }

  const or = (a, b) => a.map((x, k) => x + b[k]);

  // A (A + B)⁺ B = Σ (A v) (B v)ᵀ / λ over the directions v that either uses.
  function and(a, b) {
    const { n, values, vectors } = eigen(or(a, b)), result = new Float64Array(n * n);
    for (let k = 0; k < n && values[k] > 1e-14 * values[0]; k++) {
      const v = vectors.subarray(k * n, k * n + n), left = times(a, v), right = times(b, v);
      for (let i = 0; i < n; i++) {
        for (let j = 0; j < n; j++) result[i * n + j] += left[i] * right[j] / values[k];
      }
    }
    return result.map((x, k) => (x + result[(k % n) * n + Math.floor(k / n)]) / 2);
  }

  function times(matrix, x) {
    const n = x.length;
    return Float64Array.from(x, (_, i) => {
      let sum = 0;
      for (let j = 0; j < n; j++) sum += matrix[i * n + j] * x[j];
      return sum;
    });
  }

  // Singular values of the conceptor with these λ at an aperture; infinite λ are included fully.
  function singular(values, aperture) {
    return Float64Array.from(values, (value) => {
      const odds = Math.max(value, 0) * aperture * aperture;
      return odds === Infinity ? 1 : odds / (1 + odds);
    });
  }

  const mean = (values) => values.reduce((sum, s) => sum + s, 0) / values.length;

  // C x for the conceptor with these singular values along the rows of `vectors`.
  function project({ n, vectors }, singularValues, x) {
    const result = new Float64Array(n);
    for (let k = 0; k < n; k++) {
      const v = vectors.subarray(k * n, k * n + n);
      let share = 0;
      for (let i = 0; i < n; i++) share += v[i] * x[i];
      for (let i = 0; i < n; i++) result[i] += singularValues[k] * share * v[i];
    }
    return result;
  }

  return { eigen, or, and, singular, mean, project };
})();
