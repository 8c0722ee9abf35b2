/* What one would write by hand in an afternoon: clean loops, OpenMP over the outer one, no intrinsics. */
#include <math.h>
#include <stdint.h>

#define F float *restrict
#define CF const float *restrict
typedef int64_t I;

void batched(I b, I n, I n2, CF x, CF y, F z) {
#pragma omp parallel for
    for (I t = 0; t < b; t++) {
        CF xt = x + t * n * n; CF yt = y + t * n * n; F zt = z + t * n * n;
        for (I i = 0; i < n; i++) {
            for (I j = 0; j < n; j++) zt[i * n + j] = 0;
            for (I k = 0; k < n; k++)
                for (I j = 0; j < n; j++) zt[i * n + j] += xt[i * n + k] * yt[k * n + j];
        }
    }
}

void gemv(I m, I n, CF x, CF y, F z) {
#pragma omp parallel for if (m * n > 65536)
    for (I i = 0; i < m; i++) {
        float total = 0;
        for (I j = 0; j < n; j++) total += x[i * n + j] * y[j];
        z[i] = total;
    }
}

void depthwise(I b, I c, I h, I w, CF x, CF g, F z) {
#pragma omp parallel for collapse(2)
    for (I t = 0; t < b; t++)
        for (I q = 0; q < c; q++) {
            CF xi = x + (t * c + q) * h * w; F zi = z + (t * c + q) * h * w; CF gi = g + q * 9;
            for (I i = 0; i < h; i++) {
                for (I j = 0; j < w; j++) zi[i * w + j] = 0;
                for (I r = -1; r <= 1; r++) {
                    if (i + r < 0 || i + r >= h) continue;
                    CF row = xi + (i + r) * w;
                    for (I s = -1; s <= 1; s++) {
                        float tap = gi[(r + 1) * 3 + s + 1];
                        for (I j = s < 0 ? 1 : 0; j < (s > 0 ? w - 1 : w); j++) zi[i * w + j] += tap * row[j + s];
                    }
                }
            }
        }
}

void softmax(I m, I n, CF x, F y) {
#pragma omp parallel for if (m * n > 65536)
    for (I i = 0; i < m; i++) {
        CF a = x + i * n; F z = y + i * n;
        float top = a[0], total = 0;
        for (I j = 0; j < n; j++) top = a[j] > top ? a[j] : top;
        for (I j = 0; j < n; j++) { float e = expf(a[j] - top); z[j] = e; total += e; }
        float scale = 1 / total;
        for (I j = 0; j < n; j++) z[j] *= scale;
    }
}

void layernorm(I m, I n, CF x, CF g, CF b, F y) {
#pragma omp parallel for if (m * n > 65536)
    for (I i = 0; i < m; i++) {
        CF a = x + i * n; F z = y + i * n;
        float total = 0, square = 0;
        for (I j = 0; j < n; j++) total += a[j];
        float mean = total / n;
        for (I j = 0; j < n; j++) square += (a[j] - mean) * (a[j] - mean);
        float scale = 1 / sqrtf(square / n + 1e-5f);
        for (I j = 0; j < n; j++) z[j] = (a[j] - mean) * scale * g[j] + b[j];
    }
}

void rmsnorm(I m, I n, CF x, CF g, F y) {
#pragma omp parallel for if (m * n > 65536)
    for (I i = 0; i < m; i++) {
        CF a = x + i * n; F z = y + i * n;
        float square = 0;
        for (I j = 0; j < n; j++) square += a[j] * a[j];
        float scale = 1 / sqrtf(square / n + 1e-5f);
        for (I j = 0; j < n; j++) z[j] = a[j] * scale * g[j];
    }
}

void nll(I m, I n, CF x, const I *restrict target, F out) {
    double loss = 0;
#pragma omp parallel for reduction(+ : loss) if (m * n > 65536)
    for (I i = 0; i < m; i++) {
        CF a = x + i * n;
        float top = a[0], total = 0;
        for (I j = 0; j < n; j++) top = a[j] > top ? a[j] : top;
        for (I j = 0; j < n; j++) total += expf(a[j] - top);
        loss += logf(total) + top - a[target[i]];
    }
    out[0] = loss / m;
}

void chain(I n, CF x, CF y, F z) {
#pragma omp parallel for simd
    for (I i = 0; i < n; i++) {
        float a = x[i] * y[i] + 1.5f, b = sqrtf(a) + expf(-x[i]), c = tanhf(b * y[i]) - 0.25f * a;
        z[i] = (c > -1 ? c : -1) / (1 + y[i] * y[i]);
    }
}

void gelu(I n, CF x, F y) {
#pragma omp parallel for simd
    for (I i = 0; i < n; i++) y[i] = 0.5f * x[i] * (1 + erff(x[i] * 0.70710678f));
}

void bias_relu(I m, I n, CF x, CF b, F y) {
#pragma omp parallel for
    for (I i = 0; i < m; i++)
        for (I j = 0; j < n; j++) { float v = x[i * n + j] + b[j]; y[i * n + j] = v > 0 ? v : 0; }
}

/* In place: p2 is p, m2 is m, v2 is v. */
void adam(I n, const float *p, CF g, const float *m, const float *v, float *p2, float *m2, float *v2) {
#pragma omp parallel for simd
    for (I i = 0; i < n; i++) {
        float a = 0.9f * m[i] + 0.1f * g[i], b = 0.999f * v[i] + 0.001f * g[i] * g[i];
        m2[i] = a; v2[i] = b; p2[i] = p[i] - 1e-3f * a / (sqrtf(b) + 1e-8f);
    }
}

static void blur_rows(I h, I w, CF x, F t) {
#pragma omp parallel for
    for (I i = 0; i < h; i++) {
        CF a = x + i * w; F z = t + i * w;
        for (I j = 2; j < w - 2; j++)
            z[j] = 0.0625f * (a[j - 2] + a[j + 2]) + 0.25f * (a[j - 1] + a[j + 1]) + 0.375f * a[j];
        for (I e = 0; e < 4; e++) {
            I j = e < 2 ? e : w - 4 + e, l = j < 2 ? 0 : j - 2, k = j < 1 ? 0 : j - 1, q = j + 1 < w ? j + 1 : w - 1;
            I r = j + 2 < w ? j + 2 : w - 1;
            z[j] = 0.0625f * (a[l] + a[r]) + 0.25f * (a[k] + a[q]) + 0.375f * a[j];
        }
    }
}

#define ROWS(i, h) \
    CF a = t + ((i) < 2 ? 0 : (i) - 2) * w; CF b = t + ((i) < 1 ? 0 : (i) - 1) * w; CF c = t + (i) * w; \
    CF d = t + ((i) + 1 < (h) ? (i) + 1 : (h) - 1) * w; CF e = t + ((i) + 2 < (h) ? (i) + 2 : (h) - 1) * w;

void blur(I h, I w, CF x, F y, F t) {
    blur_rows(h, w, x, t);
#pragma omp parallel for
    for (I i = 0; i < h; i++) {
        ROWS(i, h)
        for (I j = 0; j < w; j++) y[i * w + j] = 0.0625f * (a[j] + e[j]) + 0.25f * (b[j] + d[j]) + 0.375f * c[j];
    }
}

void unsharp(I h, I w, CF x, F y, F t) {
    blur_rows(h, w, x, t);
#pragma omp parallel for
    for (I i = 0; i < h; i++) {
        ROWS(i, h)
        for (I j = 0; j < w; j++) {
            float soft = 0.0625f * (a[j] + e[j]) + 0.25f * (b[j] + d[j]) + 0.375f * c[j], at = x[i * w + j];
            float v = at + 1.5f * (at - soft);
            y[i * w + j] = v < 0 ? 0 : v > 1 ? 1 : v;
        }
    }
}

void harris(I h, I w, CF x, F y, F t) {
    F xx = t; F yy = t + h * w; F xy = t + 2 * h * w;
#pragma omp parallel for
    for (I i = 0; i < h - 2; i++) {
        CF a = x + i * w; CF b = a + w; CF c = b + w;
        for (I j = 0; j < w - 2; j++) {
            float gx = 0.125f * ((a[j + 2] - a[j]) + 2 * (b[j + 2] - b[j]) + (c[j + 2] - c[j]));
            float gy = 0.125f * ((c[j] - a[j]) + 2 * (c[j + 1] - a[j + 1]) + (c[j + 2] - a[j + 2]));
            xx[i * w + j] = gx * gx; yy[i * w + j] = gy * gy; xy[i * w + j] = gx * gy;
        }
    }
#pragma omp parallel for
    for (I i = 0; i < h - 4; i++)
        for (I j = 0; j < w - 4; j++) {
            float p = 0, q = 0, r = 0;
            for (I u = 0; u < 3; u++)
                for (I v = 0; v < 3; v++) {
                    I o = (i + u) * w + j + v;
                    p += xx[o]; q += yy[o]; r += xy[o];
                }
            y[i * (w - 4) + j] = p * q - r * r - 0.04f * (p + q) * (p + q);
        }
}
